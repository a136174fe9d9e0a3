// A block's tile of a bf16 product, by the matrix units of waves of 64 lanes. The formula stands at Product in gemm.h.
//   x (M, K), w, up (N, K) bf16, rows 16-byte aligned, K a multiple of eight; sums f32.
// While a step of kDepth columns is multiplied out of shared memory, the next one is on its way into registers; with
// two stages it goes into the other half of shared memory, with one into the same place behind a second barrier. Rows
// are permuted as in gemm_blocks.cuh. Rows of w are the left operand: a lane then holds four neighbouring output
// columns of one row. Sums leave through shared memory, sixteen rows of a wave at a time, so that they need no more of
// it than the steps do. kUnit: rows of the matrix unit; with 32 of them, an operand out of shared memory serves twice
// the outputs. Bytes moved: tiles along N times x, tiles along M times w, out once.
#pragma once

#include <array>

#include "backend/gpu/device/mfma.cuh"
#include "backend/gpu/gemm_blocks.cuh"

namespace tendon::gpu {

template <int kRows, int kCols, int kDepth, int kRowWaves, int kColWaves, int kStages, int kUnit = 16>
TENDON_KERNEL void __launch_bounds__(kRowWaves* kColWaves* kWarpSize) tile_gemm_kernel(TileArgs a) {
  constexpr int kThreads = kRowWaves * kColWaves * kWarpSize;
  constexpr int kChunks = kDepth / 8;
  constexpr int kRowStep = kThreads / kChunks;  // rows that the block copies at once
  constexpr int kXCopies = kRows / kRowStep;
  constexpr int kCopies = (kRows + kCols) / kRowStep;
  constexpr int kUnitChunks = kWarpSize / kUnit;  // octets of the depth that one product of the unit takes
  constexpr int kSteps = kChunks / kUnitChunks;
  constexpr int kWaveRows = kRows / kRowWaves;
  constexpr int kWaveCols = kCols / kColWaves;
  constexpr int kM = kWaveRows / kUnit;
  constexpr int kN = kWaveCols / kUnit;
  constexpr int kSums = kUnit * kUnit / kWarpSize;  // of a lane
  constexpr int kSlot = (kRows + kCols) * kDepth;
  static_assert(kDepth == 32 || kDepth == 64);
  static_assert((kUnit == 16 || kUnit == 32) && kWaveRows % kUnit == 0 && kWaveCols % kUnit == 0);
  static_assert(kRows % kRowStep == 0 && kCols % kRowStep == 0 && kRowStep % 16 == 0 && kStages <= 2);
  TENDON_DYNAMIC_SHARED(memory);
  Bf16* const slots = reinterpret_cast<Bf16*>(memory);  // kStages × (kRows + kCols, kDepth)

  const GemmEpilogue& e = a.sink.epilogue;
  const int tile_cols = a.sink.gate_up ? kCols / 2 : kCols;  // output columns
  const TilePlace place =
      place_of_block(static_cast<int>(blockIdx.x), (e.rows + kRows - 1) / kRows, (e.cols + tile_cols - 1) / tile_cols);
  const int first_row = place.row * kRows;
  const int first_col = place.col * tile_cols;
  const int all_steps = (a.depth + kDepth - 1) / kDepth;
  const int first_step = static_cast<int>(blockIdx.y) * a.steps_per_part;
  const int end_step = first_step + a.steps_per_part < all_steps ? first_step + a.steps_per_part : all_steps;

  // What this thread copies: every kRowStep-th row of x and w, always the same chunk. Rows of w alternate between gate
  // and up in groups of eight; as kRowStep is a multiple of 16, a thread stays with one of them.
  const int copy_row = static_cast<int>(threadIdx.x) / kChunks;
  const int copy_chunk = static_cast<int>(threadIdx.x) % kChunks;
  const int w_row = a.sink.gate_up ? copy_row / 16 * 8 + copy_row % 8 : copy_row;
  const int w_row_step = a.sink.gate_up ? kRowStep / 2 : kRowStep;
  const Bf16* const x_from = a.x + (first_row + copy_row) * a.x_stride + copy_chunk * 8;
  const Bf16* const w_from =
      (a.sink.gate_up && copy_row / 8 % 2 == 1 ? a.up : a.w) + (first_col + w_row) * a.w_stride + copy_chunk * 8;
  Octet next[kCopies];
  const auto load = [&](int step) {  // outside the matrices zeros
    const int k = step * kDepth;
    const bool in_depth = k + copy_chunk * 8 < a.depth;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (i < kXCopies) {
        const bool valid = in_depth && first_row + copy_row + i * kRowStep < e.rows;
        next[i] = valid ? load_octet(x_from + i * kRowStep * a.x_stride + k) : Octet{};
      } else {
        const int row = (i - kXCopies) * w_row_step;
        const bool valid = in_depth && first_col + w_row + row < e.cols;
        next[i] = valid ? load_octet(w_from + row * a.w_stride + k) : Octet{};
      }
    }
  };
  Bf16* const copy_to = slots + copy_row * kDepth + permuted<kDepth>(copy_row, copy_chunk) * 8;
  const auto store = [&](int slot) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) store_octet(copy_to + slot * kSlot + i * kRowStep * kDepth, next[i]);
  };

  const int wave_row = wave() / kColWaves * kWaveRows;
  const int wave_col = wave() % kColWaves * kWaveCols;
  const int x_row = wave_row + lane() % kUnit;
  const int w_frag_row = wave_col + lane() % kUnit;
  const Bf16* const x_at = slots + x_row * kDepth;
  const Bf16* const w_at = slots + (kRows + w_frag_row) * kDepth;

  float sums[kM][kN][kSums] = {};
  load(first_step);
  store(0);
  block_sync();
#pragma unroll 1
  for (int t = first_step; t < end_step; ++t) {
    const int slot = kStages == 1 ? 0 : (t - first_step) % 2;
    const bool more = t + 1 < end_step;
    if (more) load(t + 1);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chunk = step * kUnitChunks + lane() / kUnit;
      Octet x[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m)
        x[m] = load_octet(x_at + slot * kSlot + m * kUnit * kDepth + permuted<kDepth>(x_row, chunk) * 8);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const Octet w = load_octet(w_at + slot * kSlot + n * kUnit * kDepth + permuted<kDepth>(w_frag_row, chunk) * 8);
#pragma unroll
        for (int m = 0; m < kM; ++m) mfma_bf16(sums[m][n], w, x[m]);
      }
    }
    if constexpr (kStages == 1) block_sync();  // all have read it
    if (more) store(kStages == 1 ? 0 : 1 - slot);
    block_sync();
  }

  constexpr int kPitch = kWaveCols + 4;
  float* const staging = reinterpret_cast<float*>(memory) + wave() * 16 * kPitch;
  constexpr int kQuadStep = 4 * kUnitChunks;  // columns between a lane's groups of four
#pragma unroll 1
  for (int part = 0; part < kWaveRows / 16; ++part) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {  // registers have no computed index
      if (m != part * 16 / kUnit || lane() % kUnit / 16 != part % (kUnit / 16)) continue;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < kSums; i += 4) {
          store_vec(staging + lane() % 16 * kPitch + n * kUnit + i / 4 * kQuadStep + lane() / kUnit * 4,
                    Vec<float>{{sums[m][n][i], sums[m][n][i + 1], sums[m][n][i + 2], sums[m][n][i + 3]}});
        }
      }
    }
    wave_sync();
    drain<16, kWaveCols, kPitch, kWarpSize>(a.sink, staging, lane(), static_cast<int>(blockIdx.y),
                                            first_row + wave_row + part * 16, place.col * kCols + wave_col);
    wave_sync();  // all have read it
  }
}

template <int kRows, int kCols, int kDepth, int kRowWaves, int kColWaves, int kStages, int kUnit = 16>
constexpr int tile_shared_bytes() {
  constexpr int kPipeline = kStages * (kRows + kCols) * kDepth * static_cast<int>(sizeof(Bf16));
  constexpr int kStaging = kRowWaves * 16 * kColWaves * (kCols / kColWaves + 4) * static_cast<int>(sizeof(float));
  constexpr int kBytes = kPipeline > kStaging ? kPipeline : kStaging;
  static_assert(kBytes <= 160 << 10);  // of gfx950; gfx942 has 64 KB, and cut_fits() keeps the larger ones from it
  return kBytes;
}

// rows, cols, depth, waves along rows and cols, stages, rows of the matrix unit where they are 32. The numbers behind
// are guesses until a card has been measured; they leave the tiles of the last two groups to the tuner.
template <class Make>
constexpr auto built_tiles() {
  return std::array{
      Make::template tile<256, 256, 64, 2, 4, 1>(1.0F, 1),
      Make::template tile<256, 128, 64, 4, 2, 1>(1.0F, 1),
      Make::template tile<128, 128, 64, 2, 2, 1>(0.9F, 2),
      Make::template tile<128, 128, 32, 2, 2, 2>(0.9F, 2),
      Make::template tile<64, 128, 64, 2, 2, 2>(0.7F, 1),
      Make::template tile<64, 64, 64, 2, 2, 2>(0.5F, 2),
      Make::template tile<32, 64, 64, 2, 2, 2>(0.35F, 2),
      Make::template tile<16, 64, 64, 1, 2, 2>(0.2F, 3),
      // Matrix units of 32 rows.
      Make::template tile<256, 256, 64, 2, 4, 1, 32>(0.95F, 1),
      Make::template tile<256, 128, 64, 4, 2, 1, 32>(0.95F, 1),
      Make::template tile<128, 128, 64, 2, 2, 1, 32>(0.85F, 2),
      Make::template tile<128, 128, 32, 2, 2, 2, 32>(0.85F, 2),
      Make::template tile<64, 128, 64, 2, 2, 2, 32>(0.65F, 1),
      // More shared memory than gfx942 has.
      Make::template tile<256, 256, 64, 2, 4, 2>(0.95F, 1),
      Make::template tile<256, 256, 64, 2, 4, 2, 32>(0.95F, 1),
      Make::template tile<256, 128, 64, 4, 2, 2, 32>(0.95F, 1),
  };
}

}  // namespace tendon::gpu
