// The products of an expert layer in the persistent denoise kernel for many rows; attention stands in attention.cuh.
#pragma once

#include "backend/cuda/denoise_wide/block.cuh"

namespace tendon::gpu::denoise::wide {

// Norm, q, k, v and the rotation, in the first kQkvBlocks blocks. `shift` (kQkvWidth) or null.
TENDON_DEVICE void qkv_stage(const Block& t, uint32_t first_chunk, const unsigned char* x, const float* shift,
                             unsigned char* qk, unsigned char* v_out) {
  if (t.block >= kQkvBlocks) return;
  const int head = t.block >> 3;                                 // 0–7 of q, then k, then v
  const int dim = (t.block & 7) * 16 + t.side * 8 + 2 * t.quad;  // and dim + 1; partners kHalfDim further
  const bool is_v = head > kHeads;
  float2 cosine[2];
  float2 sine[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    cosine[h] = make_float2(1.0F, 1.0F);
    sine[h] = make_float2(0.0F, 0.0F);
    if (!is_v && t.product_row(h) < t.args.rows) {
      const float* const angles = t.args.rope + int64_t{__ldg(t.args.positions + t.product_row(h))} * kHeadDim + dim;
      cosine[h] = *reinterpret_cast<const float2*>(angles);
      sine[h] = *reinterpret_cast<const float2*>(angles + kHalfDim);
    }
  }
  float added[2][2] = {};
  if (shift != nullptr) {
#pragma unroll
    for (int partner = 0; partner < 2; ++partner) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        added[partner][e] = load_constant(shift + head * kHeadDim + partner * kHalfDim + dim + e);
    }
  }
  float sums[16] = {};
  t.multiply_stream<4, 8>(sums, first_chunk, x);
  float kept[8];
  t.trade<4>(sums, kept);

  float out[2][2][2];  // row half, partner, column
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const bool valid = t.product_row(h) < kRows;
    const float inverse = t.inverse_norm(t.product_row(h));
    const float c[2] = {cosine[h].x, cosine[h].y};
    const float s[2] = {sine[h].x, sine[h].y};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float low = kept[2 * h + e] * inverse + added[0][e];
      const float high = kept[4 + 2 * h + e] * inverse + added[1][e];
      out[h][0][e] = valid ? low * c[e] - high * s[e] : 0.0F;
      out[h][1][e] = valid ? high * c[e] + low * s[e] : 0.0F;
    }
  }
#pragma unroll
  for (int partner = 0; partner < 2; ++partner) {
    if (!is_v) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (t.product_row(h) >= kRows) continue;
        store_relaxed_4(
            activation(qk, head * 32 + (dim >> 3) + partner * (kHalfDim / 8), t.product_row(h)) + t.quad * 4,
            pack_bf16(out[h][partner][0], out[h][partner][1]));
      }
    } else {
      // Two slots a word, from the back: own_row().
      const int part = 2 * t.group + (t.quarter & 1);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        store_relaxed_4(v_out + ((part * kHeadDim + partner * kHalfDim + dim + e) * 2 + 1 - (t.quarter >> 1)) * 4,
                        pack_bf16(out[1][partner][e], out[0][partner][e]));
      }
    }
  }
}

// A tile of columns over an eighth of the depth: o (kDown = false) or down. The sums go to those who own the tile.
template <bool kDown>
TENDON_DEVICE void split_stage(const Block& t, uint32_t first_chunk, const unsigned char* in,
                               unsigned char* split_sums) {
  constexpr int kDepth = kDown ? kDownDepth : kOutDepth;
  float sums[32] = {};
  const unsigned char* const from = in + t.split() * (kDepth / 8) * kActivationStride;
  t.multiply_pieces<8, 4, kDepth / kPieceColumns>(sums, first_chunk, from, [&] {
    uint4 one[1];
    await(
        one, [&](int) { return from + t.thread * kUnitBytes; }, [](int) { return true; });
  });
  float kept[16];
  t.trade<8>(sums, kept);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = t.product_row(h);
    if (row >= kRows) continue;
    unsigned char* const to =
        split_sums +
        (((t.tile() * kRowGroups + row / kGroupRows) * kSplits + t.split()) * kGroupRows + row % kGroupRows) *
            (kTileColumns * 4);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      store_relaxed_8(to + (Block::column_group<8>(t.side, k) * 8 + 2 * t.quad) * 4,
                      __float_as_uint(kept[4 * k + 2 * h]), __float_as_uint(kept[4 * k + 2 * h + 1]));
    }
  }
}

// residual += the sums of split_stage (times `gate`, if any), handed on times the next norm's `gains`.
TENDON_DEVICE void add_stage(Block& t, unsigned char* split_sums, const float* gate, const float* gains,
                             unsigned char* stream) {
  if (t.warp() >= kGroupRows) return;
  const int column = t.tile() * kTileColumns + t.own_column();
  const float4 gain = load_constant_4(gains + column);
  float4 factor = make_float4(1.0F, 1.0F, 1.0F, 1.0F);
  if (gate != nullptr) factor = load_constant_4(gate + column);
  constexpr int kMine = kSplits / 2;
  unsigned char* const from =
      split_sums +
      (size_t{static_cast<unsigned>(t.block)} * kSplits + (t.lane & 1) * kMine) * (kGroupRows * kTileColumns * 4) +
      (t.warp() * kTileColumns + t.own_column()) * 4;
  uint4 v[kMine];
  await(
      v, [&](int i) { return from + i * (kGroupRows * kTileColumns * 4); }, [](int) { return true; });
  float sums[4] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    store_relaxed_16(from + i * (kGroupRows * kTileColumns * 4), make_uint4(kEmpty, kEmpty, kEmpty, kEmpty));
    sums[0] += __uint_as_float(v[i].x);
    sums[1] += __uint_as_float(v[i].y);
    sums[2] += __uint_as_float(v[i].z);
    sums[3] += __uint_as_float(v[i].w);
  }
  const float factors[4] = {factor.x, factor.y, factor.z, factor.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums[i] += shuffle_xor(sums[i], 1);
    t.residual[i] = rounded<Bf16>(t.residual[i] + sums[i] * factors[i]);
  }
  t.publish(gain, stream);
}

// Norm, gate and up, GELU(gate) · up: block b makes hidden columns 32b..32b+31. `shift` (2 · kMlp) or null.
TENDON_DEVICE void gate_up_stage(const Block& t, uint32_t first_chunk, const unsigned char* x, const float* shift,
                                 unsigned char* hidden) {
  float added[2][2][2] = {};  // gate and up, group, column
  if (shift != nullptr) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float* const at = shift + t.block * kHiddenColumns + (t.side * 2 + k) * 8 + 2 * t.quad + e;
        added[0][k][e] = load_constant(at);
        added[1][k][e] = load_constant(at + kMlp);
      }
    }
  }
  float sums[32] = {};
  t.multiply_stream<8, 4>(sums, first_chunk, x);
  float kept[16];
  t.trade<8>(sums, kept);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = t.product_row(h);
    if (row >= kRows) continue;
    const float inverse = t.inverse_norm(row);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float v[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float gate = kept[4 * k + 2 * h + e] * inverse + added[0][k][e];
        const float up = kept[8 + 4 * k + 2 * h + e] * inverse + added[1][k][e];
        v[e] = gelu_tanh(gate) * up;
      }
      store_relaxed_4(activation(hidden, t.block * (kHiddenColumns / 8) + t.side * 2 + k, row) + t.quad * 4,
                      pack_bf16(v[0], v[1]));
    }
  }
}

}  // namespace tendon::gpu::denoise::wide
