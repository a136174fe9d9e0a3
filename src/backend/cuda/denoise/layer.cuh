// The products of an expert layer in the persistent denoise kernel; attention stands in attention.cuh. kCodes: weights
// are codes, and `scales` those of the layer (layout.h).
#pragma once

#include "backend/cuda/denoise/block.cuh"
#include "backend/cuda/denoise/weights.cuh"

namespace tendon::gpu::denoise {

// Norm, q, k, v and the rotation. Block b makes units 5b..5b+4 of four columns (layout.h). `shift` (kQkvWidth) or null.
template <bool kCodes>
TENDON_DEVICE void qkv_stage(const Block& t, uint32_t first_chunk, const unsigned char* x, const float* shift,
                             const float* scales, unsigned char* qkv) {
  const int rows = t.args.rows;
  const Block::QkvItem at = t.qkv_item();
  float added = 0.0F;
  if (shift != nullptr && at.valid()) added = load_constant(shift + at.head * kHeadDim + at.column());
  float scale = 1.0F;
  if (kCodes && at.valid()) scale = load_constant(scales + kQkvScales + at.head * kHeadDim + at.column());

  uint4 b[8];
  uint4 weights[8];
  uint2 last_unit[8];
  float sums[2][4] = {};
  float last_sums[2][4] = {};
  const uint32_t chunk = first_chunk + (t.warp >> 1);
  const uint32_t from = t.chunk(chunk);
  const uint32_t last_from = t.chunk(first_chunk + 4);
#pragma unroll
  for (int step = 0; step < 8; step += 2)
    load_weights<kCodes>(weights[step], weights[step + 1], from, (t.warp & 1) * 8 + step, t.lane);
  load_fifth_unit<kCodes>(last_unit, last_from, t.warp, t.lane);
  t.release(chunk, 8);
  t.release(first_chunk + 4, 2);
  t.load_stream(b, x);
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint4 last = make_uint4(last_unit[step].x, 0, last_unit[step].y, 0);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      mma_step(sums[j], weights[step], b[step / 2 * 2 + j], step);
      mma_step(last_sums[j], last, b[step / 2 * 2 + j], step);
    }
  }
  constexpr int kWarpStride = 20 * kMaxRows * 4;
  const uint32_t base = t.shared + SharedLayout::kSumsWide;
  __syncwarp();
  t.put_sums(base + t.warp * kWarpStride, 0, sums, true);
  if (t.group < 4) t.put_sums(base + t.warp * kWarpStride, 16, last_sums, false);
  compute_sync();

  float v = t.sum_of_warps(base, kWarpStride, min(at.unit_of_block, 4) * 4 + at.member, at.rows4) *
                (t.inverse_norm(at.row) * scale) +
            added;
  const float partner = shuffle_xor(v, 2);
  if (!at.is_v()) v = at.member < 2 ? v * t.cosine - partner * t.sine : v * t.cosine + partner * t.sine;
  const float next_column = shuffle_xor(v, 1);
  if (at.valid() && at.row < rows && (at.member & 1) == 0) {
    const int column = at.column();
    store_relaxed_4(activation_word(qkv, at.head * 32 + (column >> 3), at.row, (column & 7) >> 1),
                    pack_bf16(v, next_column));
  }
}

// residual += in · wᵀ (times `gate`, if any) for o (kDown = false) and down, handed on times the next norm's `gains`.
// The blocks of a pair have half of the depth each and send each other the sums of the other's columns.
template <bool kDown, bool kCodes>
TENDON_DEVICE void output_stage(Block& t, uint32_t first_chunk, const unsigned char* in, const float* gate,
                                const float* gains, const float* scales, unsigned char* stream) {
  constexpr int kPairs = kDown ? 8 : 4;  // of k steps, a warp
  constexpr int kSteps = 2 * kPairs;
  constexpr int kWarpsOfChunk = kFragments / kSteps;
  const int rows = t.args.rows;
  const uint32_t barrier = t.shared + SharedLayout::kBarriers + (kDown ? 8 : 0);
  if (t.thread == 0) barrier_expect(barrier, 8 * rows * 4);
  const Block::Own own = t.own();
  float factor = 1.0F;
  float gain = 0.0F;
  if (own.mine) {
    gain = load_constant(gains + t.block * 8 + own.column);
    if (gate != nullptr) factor = load_constant(gate + t.block * 8 + own.column);
    if (kCodes) factor *= load_constant(scales + (kDown ? kDownScales : kOutScales) + t.block * 8 + own.column);
  }

  uint4 b[kPairs * 2];
  uint4 weights[kSteps];
  float sums[2][2][4] = {};  // even and odd k steps
  const uint32_t chunk = first_chunk + t.warp / kWarpsOfChunk;
  const uint32_t at = t.chunk(chunk);
#pragma unroll
  for (int step = 0; step < kSteps; step += 2)
    load_weights<kCodes>(weights[step], weights[step + 1], at, t.warp % kWarpsOfChunk * kSteps + step, t.lane);
  t.release(chunk, kSteps);
  t.load_rows<kPairs>(b, in, (kDown ? 256 : 128) * t.half + t.warp * kPairs * 4);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int j = 0; j < 2; ++j) mma_step(sums[step & 1][j], weights[step], b[step / 2 * 2 + j], step);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[0][j][e] += sums[1][j][e];
  }
  constexpr int kWarpStride = 16 * kMaxRows * 4;
  const uint32_t base = t.shared + SharedLayout::kSumsNarrow;
  __syncwarp();
  t.put_sums(base + t.warp * kWarpStride, 0, sums[0], true);
  compute_sync();

  if (t.warp >= 2 * kQuads) return;
  float v = t.sum_of_warps(base, kWarpStride, own.half * 8 + own.column, own.rows4);
  const uint32_t received =
      t.shared + SharedLayout::kReceived + ((kDown ? 8 : 0) + own.column) * (kMaxRows * 4) + own.row * 4;
  if (!own.mine) {
    if (own.row < rows) send(in_block(received, own.half), v, in_block(barrier, own.half));
    return;
  }
  barrier_wait(barrier, t.layer_parity & 1);
  if (own.row < rows) t.residual = rounded<Bf16>(t.residual + (v + load_shared_float(received)) * factor);
  t.publish(own, gain, stream);
}

// Norm, gate and up, GELU(gate) · up: block b makes hidden columns 32b..32b+31. `shift` (2 · kMlp) or null.
template <bool kCodes>
TENDON_DEVICE void gate_up_stage(const Block& t, uint32_t first_chunk, const unsigned char* x, const float* shift,
                                 const float* scales, unsigned char* hidden) {
  constexpr int kFinishing = 16 * kQuads / 8;  // warps that finish two columns a thread: neither waits for the other
  const Block::HiddenItem item = t.hidden_item();
  float added[2][2] = {};  // to gate and up
  if (shift != nullptr && t.warp < kFinishing) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* const at = shift + t.block * 32 + item.column + 16 * i;
      added[i][0] = load_constant(at);
      added[i][1] = load_constant(at + kMlp);
    }
  }
  float scale[2][2] = {{1.0F, 1.0F}, {1.0F, 1.0F}};
  if (kCodes && t.warp < kFinishing) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* const at = scales + kGateUpScales + t.block * 32 + item.column + 16 * i;
      scale[i][0] = load_constant(at);
      scale[i][1] = load_constant(at + kMlp);
    }
  }
  uint4 b[8];
  uint4 weights[16];
  float sums[4][2][4] = {};
  const uint32_t chunk = first_chunk + 2 * t.warp;
  const uint32_t at = t.chunk(chunk);
  const uint32_t second_at = t.chunk(chunk + 1);
#pragma unroll
  for (int i = 0; i < 16; i += 2) load_weights<kCodes>(weights[i], weights[i + 1], at, i, t.lane);
  t.release(chunk, 16);
  t.load_stream(b, x);
#pragma unroll
  for (int step = 0; step < 8; ++step) {
#pragma unroll
    for (int tile = 0; tile < 4; tile += 2) {
      const int fragment = (step & 3) * 4 + tile;
      uint4 a[2] = {weights[fragment], weights[fragment + 1]};
      if (step >= 4) load_weights<kCodes>(a[0], a[1], second_at, fragment, t.lane);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) mma_step(sums[tile + i][j], a[i], b[step / 2 * 2 + j], step);
      }
    }
  }
  t.release(chunk + 1, 16);
  constexpr int kWarpStride = 64 * kMaxRows * 4;
  const uint32_t base = t.shared + SharedLayout::kSumsWide;
  __syncwarp();
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) t.put_sums(base + t.warp * kWarpStride, tile * 16, sums[tile], true);
  compute_sync();

  if (t.warp >= kFinishing) return;
  const float inverse = t.inverse_norm(item.row);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int column = item.column + 16 * i;
    const float gate = t.sum_of_warps(base, kWarpStride, column, item.rows4) * (inverse * scale[i][0]) + added[i][0];
    const float up = t.sum_of_warps(base, kWarpStride, 32 + column, item.rows4) * (inverse * scale[i][1]) + added[i][1];
    const float v = gelu_tanh(gate) * up;
    const float other = shuffle_xor(v, 1);
    if (item.row < t.args.rows && (column & 1) == 0) {
      store_relaxed_4(activation_word(hidden, t.block * 4 + (column >> 3), item.row, (column & 7) >> 1),
                      pack_bf16(v, other));
    }
  }
}

}  // namespace tendon::gpu::denoise
