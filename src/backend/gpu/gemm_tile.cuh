// A block's tile of a bf16 product, by tensor cores. The formula stands at Product in gemm.h.
//   x (M, K), w, up (N, K) bf16, rows 16-byte aligned, K a multiple of eight; sums f32.
// The block copies kDepth columns of its rows of x and w at a time into one of kStages slots of shared memory, ahead of
// the waves, which load the fragments of the next step of 16 into registers while they multiply those of this one.
// Rows in shared memory are kDepth long; their 16-byte chunks are permuted by the row number, so that eight rows of one
// column fall into different banks. Bytes moved: tiles along N times x, tiles along M times w (from L2, for the blocks
// of a group run together), out once.
#pragma once

#include <array>
#include <type_traits>

#include "backend/gpu/device/mma.cuh"
#include "backend/gpu/gemm_blocks.cuh"

namespace tendon::gpu {

struct alignas(8) Pair {
  float first, second;
};

template <class T, int kRows, int kCols, int kDepth, int kRowWaves, int kColWaves, int kStages>
TENDON_KERNEL void __launch_bounds__(kRowWaves* kColWaves* kWarpSize) tile_gemm_kernel(ProductArgs<T> a) {
  static_assert(std::is_same_v<T, Bf16>);
  constexpr int kThreads = kRowWaves * kColWaves * kWarpSize;
  constexpr int kChunks = kDepth / 8;
  constexpr int kRowStep = kThreads / kChunks;  // rows that the block copies at once
  constexpr int kXCopies = kRows / kRowStep;
  constexpr int kCopies = (kRows + kCols) / kRowStep;
  constexpr int kSteps = kDepth / 16;
  constexpr int kWaveRows = kRows / kRowWaves;
  constexpr int kWaveCols = kCols / kColWaves;
  constexpr int kM = kWaveRows / 16;
  constexpr int kN = kWaveCols / 8;
  constexpr int kPairs = kN / 2;
  constexpr int kSlot = (kRows + kCols) * kDepth;
  static_assert(kDepth == 32 || kDepth == 64);
  static_assert(kRows % kRowStep == 0 && kCols % kRowStep == 0 && kRowStep % 16 == 0 && kN % 2 == 0);
  TENDON_DYNAMIC_SHARED(memory);
  Bf16* const slots = reinterpret_cast<Bf16*>(memory);  // kStages × (kRows + kCols, kDepth)

  const GemmEpilogue& e = a.sink.epilogue;
  const int tile_cols = a.sink.gate_up ? kCols / 2 : kCols;  // output columns
  const TilePlace place =
      place_of_block(static_cast<int>(blockIdx.x), (e.rows + kRows - 1) / kRows, (e.cols + tile_cols - 1) / tile_cols);
  const int first_row = place.row * kRows;
  const int first_col = place.col * tile_cols;
  const int first_sum = place.col * kCols;
  const int all_steps = (a.depth + kDepth - 1) / kDepth;
  const int first_step = static_cast<int>(blockIdx.y) * a.steps_per_part;
  const int end_step = first_step + a.steps_per_part < all_steps ? first_step + a.steps_per_part : all_steps;
  const int steps = end_step - first_step;

  // What this thread copies: every kRowStep-th row of x and w, always the same chunk. Rows of w alternate between gate
  // and up in groups of eight; as kRowStep is a multiple of 16, a thread stays with one of them.
  const int copy_row = static_cast<int>(threadIdx.x) / kChunks;
  const int copy_chunk = static_cast<int>(threadIdx.x) % kChunks;
  const int w_row = a.sink.gate_up ? copy_row / 16 * 8 + copy_row % 8 : copy_row;
  const int w_row_step = a.sink.gate_up ? kRowStep / 2 : kRowStep;
  int copy_k = first_step * kDepth + copy_chunk * 8;
  // Offsets from the tile's corner have 32 bits, and rows outside the matrices a bit each: registers are scarce.
  const Bf16* const x_corner = a.x + first_row * a.x_stride;
  const Bf16* const w_corner = (a.sink.gate_up && copy_row / 8 % 2 == 1 ? a.up : a.w) + first_col * a.w_stride;
  const auto x_stride = static_cast<uint32_t>(a.x_stride);
  const auto w_stride = static_cast<uint32_t>(a.w_stride);
  uint32_t x_offset = static_cast<uint32_t>(copy_row) * x_stride + static_cast<uint32_t>(copy_k);
  uint32_t w_offset = static_cast<uint32_t>(w_row) * w_stride + static_cast<uint32_t>(copy_k);
  uint32_t valid_rows = 0;
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const bool valid = i < kXCopies ? first_row + copy_row + i * kRowStep < e.rows
                                    : first_col + w_row + (i - kXCopies) * w_row_step < e.cols;
    valid_rows |= valid ? 1U << i : 0U;
  }
  Bf16* const copy_to = slots + copy_row * kDepth + permuted<kChunks>(copy_row, copy_chunk) * 8;
  // The i-th copy of a step into a slot; outside the matrices zeros are stored and nothing is read.
  const auto copy = [&](int i, Bf16* slot, uint32_t valid) {
    const Bf16* const from =
        i < kXCopies ? x_corner + (x_offset + static_cast<uint32_t>(i * kRowStep) * x_stride)
                     : w_corner + (w_offset + static_cast<uint32_t>((i - kXCopies) * w_row_step) * w_stride);
    copy_async(slot + i * kRowStep * kDepth, from, (valid >> i & 1U) != 0);
  };
  const auto valid_now = [&](bool wanted) { return wanted && copy_k < a.depth ? valid_rows : 0U; };
  const auto next_step = [&] { copy_k += kDepth, x_offset += kDepth, w_offset += kDepth; };

  // Where this lane's fragments lie in a slot.
  const int wave_row = wave() / kColWaves * kWaveRows;
  const int wave_col = wave() % kColWaves * kWaveCols;
  const int x_row = wave_row + lane() % 16;
  const int w_frag_row = wave_col + lane() % 8 + lane() / 16 * 8;
  const Bf16* const x_at = slots + x_row * kDepth;
  const Bf16* const w_at = slots + (kRows + w_frag_row) * kDepth;
  // Of x two steps' fragments are kept, of w two pairs of 16×8: that leaves registers for a wave of 80 × 64 sums.
  uint32_t x_frag[2][kM][4];
  uint32_t w_frag[2][4];
  const auto load_x = [&](uint32_t(&to)[4], int slot, int step, int m) {
    load_matrices(to, x_at + slot * kSlot + m * 16 * kDepth + permuted<kChunks>(x_row, step * 2 + lane() / 16) * 8);
  };
  const auto load_w = [&](uint32_t(&to)[4], int slot, int step, int pair) {
    load_matrices(
        to, w_at + slot * kSlot + pair * 16 * kDepth + permuted<kChunks>(w_frag_row, step * 2 + lane() / 8 % 2) * 8);
  };

#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) copy(i, copy_to + s * kSlot, valid_now(s < steps));
    copy_commit();
    next_step();
  }
  copy_wait<kStages - 2>();
  block_sync();

  float sums[kM][kN][4] = {};
  int read_slot = 0;
  int write_slot = kStages - 1;
#pragma unroll
  for (int m = 0; m < kM; ++m) load_x(x_frag[0][m], 0, 0, m);
  load_w(w_frag[0], 0, 0, 0);
#pragma unroll 1
  for (int t = 0; t < steps; ++t) {
    const uint32_t valid = valid_now(t + kStages - 1 < steps);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      // The slot that is written was read before the last block_sync.
#pragma unroll
      for (int i = step; i < kCopies; i += kSteps) copy(i, copy_to + write_slot * kSlot, valid);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int next = step * kPairs + pair + 1;  // kSteps is even, so the parity goes on from step to step
        if (step == kSteps - 1 && pair == kPairs - 1) {
          // Everything of this slot has been read by this wave, and after the barrier by all: it may be overwritten.
          copy_commit();
          next_step();
          copy_wait<kStages - 2>();
          block_sync();
          read_slot = read_slot + 1 == kStages ? 0 : read_slot + 1;
          write_slot = write_slot + 1 == kStages ? 0 : write_slot + 1;
        }
        if (pair + 1 < kPairs) {
          load_w(w_frag[next % 2], read_slot, step, pair + 1);
        } else {
          load_w(w_frag[next % 2], read_slot, (step + 1) % kSteps, 0);
        }
        // The next step's fragments of x: beside every pair, or, from the next slot, when that is there.
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          if (step == kSteps - 1 ? pair == kPairs - 1 : m % kPairs == pair)
            load_x(x_frag[(step + 1) % 2][m], read_slot, (step + 1) % kSteps, m);
        }
        const uint32_t(&w_pair)[4] = w_frag[(next - 1) % 2];
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          mma_bf16(sums[m][2 * pair], x_frag[step % 2][m], {w_pair[0], w_pair[1]});
          mma_bf16(sums[m][2 * pair + 1], x_frag[step % 2][m], {w_pair[2], w_pair[3]});
        }
      }
    }
  }
  copy_wait<0>();
  block_sync();  // the slots become the waves' own staging areas

  // Through shared memory, so that lanes get eight neighbouring columns.
  constexpr int kPitch = kWaveCols + 8;
  float* const staging = reinterpret_cast<float*>(memory) + wave() * kWaveRows * kPitch;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      float* const at = staging + (m * 16 + lane() / 4) * kPitch + n * 8 + lane() % 4 * 2;
      *reinterpret_cast<Pair*>(at) = {sums[m][n][0], sums[m][n][1]};
      *reinterpret_cast<Pair*>(at + 8 * kPitch) = {sums[m][n][2], sums[m][n][3]};
    }
  }
  wave_sync();
  drain<kWaveRows, kWaveCols, kPitch, kWarpSize>(a.sink, staging, lane(), static_cast<int>(blockIdx.y),
                                                 first_row + wave_row, first_sum + wave_col);
}

template <class T, int kRows, int kCols, int kDepth, int kRowWaves, int kColWaves, int kStages>
constexpr int tile_shared_bytes() {
  constexpr int kPipeline = kStages * (kRows + kCols) * kDepth * static_cast<int>(sizeof(T));
  constexpr int kStaging = kRows * kColWaves * (kCols / kColWaves + 8) * static_cast<int>(sizeof(float));
  return kPipeline > kStaging ? kPipeline : kStaging;
}

// rows, cols, depth, waves along rows and cols, stages. The shared memory of an sm_90 multiprocessor is 227 KB.
template <class Make>
constexpr auto built_tiles() {
  return std::array{
      Make::template tile<160, 256, 64, 2, 4, 4>(1.0F, 1), Make::template tile<160, 256, 64, 2, 4, 3>(1.0F, 1),
      Make::template tile<128, 256, 64, 2, 4, 3>(1.0F, 1), Make::template tile<128, 256, 64, 2, 4, 4>(1.0F, 1),
      Make::template tile<128, 256, 32, 2, 4, 4>(1.0F, 1), Make::template tile<256, 128, 64, 4, 2, 3>(1.0F, 1),
      Make::template tile<160, 128, 64, 2, 2, 3>(1.0F, 2), Make::template tile<128, 128, 64, 2, 2, 3>(1.0F, 2),
      Make::template tile<128, 128, 32, 2, 2, 5>(1.0F, 2), Make::template tile<96, 128, 64, 2, 2, 3>(0.9F, 2),
      Make::template tile<64, 256, 64, 1, 4, 2>(0.9F, 2),  Make::template tile<64, 128, 64, 2, 2, 4>(0.8F, 2),
      Make::template tile<64, 64, 64, 2, 2, 4>(0.6F, 3),   Make::template tile<32, 64, 64, 2, 2, 4>(0.4F, 4),
      Make::template tile<16, 64, 64, 1, 4, 5>(0.25F, 4),
  };
}

}  // namespace tendon::gpu
