// A block's tile of a product, by the matrix units of waves of 64 lanes. The formula stands at Product in gemm.h.
//   x (M, K), w, up (N, K) T: bf16, or e4m3 or i8 codes; rows 16-byte aligned, K a multiple of 16 bytes. Sums f32, of
//   i8 i32 (K below 2¹⁷). Sums of codes meet the scales of their row and column on their way out.
// While a step of kDepth columns is multiplied out of shared memory, the next one is on its way into registers; with
// two stages it goes into the other half of shared memory, with one into the same place behind a second barrier. Rows
// are permuted as in gemm_blocks.cuh. Rows of w are the left operand: a lane then holds four neighbouring output
// columns of one row. Sums leave through shared memory, sixteen rows of a wave at a time, so that they need no more of
// it than the steps do. kUnit: rows of the matrix unit; with 32 of them, an operand out of shared memory serves twice
// the outputs. Bytes moved: tiles along N times x, tiles along M times w, out once.
#pragma once

#include <array>
#include <type_traits>

#include "backend/gpu/device/mfma.cuh"
#include "backend/gpu/gemm_blocks.cuh"

namespace tendon::gpu {

template <class T, int kRows, int kCols, int kDepth, int kRowWaves, int kColWaves, int kStages, int kUnit = 16>
TENDON_KERNEL void __launch_bounds__(kRowWaves* kColWaves* kWarpSize) tile_gemm_kernel(ProductArgs<T> a) {
  constexpr bool kCodes = sizeof(T) == 1;
  using Operand = std::conditional_t<kCodes, Codes, Octet>;  // what a lane gives the unit for one product
  using Sum = std::conditional_t<std::is_same_v<T, int8_t>, int, float>;
  constexpr int kThreads = kRowWaves * kColWaves * kWarpSize;
  constexpr int kValues = 16 / static_cast<int>(sizeof(T));  // of a chunk
  constexpr int kChunks = kDepth / kValues;
  constexpr int kRowStep = kThreads / kChunks;  // rows that the block copies at once
  constexpr int kXCopies = kRows / kRowStep;
  constexpr int kCopies = (kRows + kCols) / kRowStep;
  constexpr int kUnitChunks = kWarpSize / kUnit;  // along the depth, a lane's share of one product each
  constexpr int kShares = static_cast<int>(sizeof(Operand) / sizeof(Octet));
  constexpr int kSteps = kChunks / (kUnitChunks * kShares);
  constexpr int kWaveRows = kRows / kRowWaves;
  constexpr int kWaveCols = kCols / kColWaves;
  constexpr int kM = kWaveRows / kUnit;
  constexpr int kN = kWaveCols / kUnit;
  constexpr int kSums = kUnit * kUnit / kWarpSize;  // of a lane
  constexpr int kSlot = (kRows + kCols) * kDepth;
  static_assert(kChunks % (kUnitChunks * kShares) == 0 && (kChunks == 4 || kChunks == 8));
  static_assert((kUnit == 16 || kUnit == 32) && kWaveRows % kUnit == 0 && kWaveCols % kUnit == 0);
  static_assert(kRows % kRowStep == 0 && kCols % kRowStep == 0 && kRowStep % 16 == 0 && kStages <= 2);
  TENDON_DYNAMIC_SHARED(memory);
  T* const slots = reinterpret_cast<T*>(memory);  // kStages × (kRows + kCols, kDepth)

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
  const T* const x_from = a.x + (first_row + copy_row) * a.x_stride + copy_chunk * kValues;
  const T* const w_from =
      (a.sink.gate_up && copy_row / 8 % 2 == 1 ? a.up : a.w) + (first_col + w_row) * a.w_stride + copy_chunk * kValues;
  Octet next[kCopies];
  const auto load = [&](int step) {  // outside the matrices zeros
    const int k = step * kDepth;
    const bool in_depth = k + copy_chunk * kValues < a.depth;
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
  T* const copy_to = slots + copy_row * kDepth + permuted<kChunks>(copy_row, copy_chunk) * kValues;
  const auto store = [&](int slot) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) store_octet(copy_to + slot * kSlot + i * kRowStep * kDepth, next[i]);
  };

  const int wave_row = wave() / kColWaves * kWaveRows;
  const int wave_col = wave() % kColWaves * kWaveCols;
  const int x_row = wave_row + lane() % kUnit;
  const int w_frag_row = wave_col + lane() % kUnit;
  const T* const x_at = slots + x_row * kDepth;
  const T* const w_at = slots + (kRows + w_frag_row) * kDepth;
  const auto operand = [&](const T* at, int row, int step) {
    const auto share = [&](int i) {
      const int chunk = (step * kShares + i) * kUnitChunks + lane() / kUnit;
      return load_octet(at + permuted<kChunks>(row, chunk) * kValues);
    };
    if constexpr (kCodes) {
      return Codes{{share(0), share(1)}};
    } else {
      return share(0);
    }
  };

  Sum sums[kM][kN][kSums] = {};
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
      const auto x = [&](int m) { return operand(x_at + slot * kSlot + m * kUnit * kDepth, x_row, step); };
      const auto w = [&](int n) { return operand(w_at + slot * kSlot + n * kUnit * kDepth, w_frag_row, step); };
      Operand held[kM < kN ? kM : kN];  // of the side that takes fewer registers
      if constexpr (kM < kN) {
#pragma unroll
        for (int m = 0; m < kM; ++m) held[m] = x(m);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const Operand columns = w(n);
#pragma unroll
          for (int m = 0; m < kM; ++m) mfma(sums[m][n], columns, held[m]);
        }
      } else {
#pragma unroll
        for (int n = 0; n < kN; ++n) held[n] = w(n);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          const Operand rows = x(m);
#pragma unroll
          for (int n = 0; n < kN; ++n) mfma(sums[m][n], held[n], rows);
        }
      }
    }
    if constexpr (kStages == 1) block_sync();  // all have read it
    if (more) store(kStages == 1 ? 0 : 1 - slot);
    block_sync();
  }

  constexpr int kPitch = kWaveCols + 4;
  float* const staging = reinterpret_cast<float*>(memory) + wave() * 16 * kPitch;
  constexpr int kQuadStep = 4 * kUnitChunks;  // columns between a lane's groups of four
  const int first_sum = place.col * kCols + wave_col;
  const auto column = [&](int n, int i) { return n * kUnit + i / 4 * kQuadStep + lane() / kUnit * 4 + i % 4; };
  float scales[kCodes ? kN : 1][kCodes ? kSums : 1];  // of this lane's columns
  if constexpr (kCodes) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) scales[n][i] = scale_of_column(a, first_sum + column(n, i));
    }
  }
#pragma unroll 1
  for (int part = 0; part < kWaveRows / 16; ++part) {
    const int part_row = first_row + wave_row + part * 16;
    const float row_scale = kCodes ? mfma_scale<T>(scale_of_row(a, part_row + lane() % 16)) : 1.0F;
#pragma unroll
    for (int m = 0; m < kM; ++m) {  // registers have no computed index
      if (m != part * 16 / kUnit || lane() % kUnit / 16 != part % (kUnit / 16)) continue;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < kSums; i += 4) {
          const auto value = [&](int at) {
            if constexpr (kCodes) {
              return static_cast<float>(sums[m][n][at]) * (row_scale * scales[n][at]);
            } else {
              return sums[m][n][at];
            }
          };
          store_vec(staging + lane() % 16 * kPitch + column(n, i),
                    Vec<float>{{value(i), value(i + 1), value(i + 2), value(i + 3)}});
        }
      }
    }
    wave_sync();
    drain<16, kWaveCols, kPitch, kWarpSize>(a.sink, staging, lane(), static_cast<int>(blockIdx.y), part_row, first_sum);
    wave_sync();  // all have read it
  }
}

template <class T, int kRows, int kCols, int kDepth, int kRowWaves, int kColWaves, int kStages, int kUnit = 16>
constexpr int tile_shared_bytes() {
  constexpr int kPipeline = kStages * (kRows + kCols) * kDepth * static_cast<int>(sizeof(T));
  constexpr int kStaging = kRowWaves * 16 * kColWaves * (kCols / kColWaves + 4) * static_cast<int>(sizeof(float));
  constexpr int kBytes = kPipeline > kStaging ? kPipeline : kStaging;
  static_assert(kBytes <= 160 << 10);  // of gfx950; gfx942 has 64 KB, and cut_fits() keeps the larger ones from it
  return kBytes;
}

// rows, cols, depth, waves along rows and cols, stages, rows of the matrix unit where they are 32. The numbers behind
// are guesses until a card has been measured; they leave the tiles with units of 32 rows, and of more shared memory
// than gfx942 has, to the tuner where there are others.
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
      // Of codes. Two blocks of sixteen are a lane's operand: with units of 16 rows, eight of them take more registers
      // than a wave of two on its unit has, so the largest tiles have units of 32 only.
      Make::template code_tile<256, 256, 128, 2, 4, 1, 32>(1.0F, 1),
      Make::template code_tile<256, 128, 128, 4, 2, 1>(1.0F, 1),
      Make::template code_tile<128, 128, 128, 2, 2, 1>(0.9F, 2),
      Make::template code_tile<64, 128, 128, 2, 2, 2>(0.7F, 1),
      Make::template code_tile<64, 64, 128, 2, 2, 2>(0.5F, 2),
      Make::template code_tile<32, 64, 128, 2, 2, 2>(0.35F, 2),
      Make::template code_tile<256, 128, 128, 4, 2, 1, 32>(0.95F, 1),
      Make::template code_tile<128, 128, 128, 2, 2, 1, 32>(0.85F, 2),
      Make::template code_tile<256, 256, 128, 2, 4, 2, 32>(0.95F, 1),
      Make::template code_tile<256, 128, 128, 4, 2, 2, 32>(0.95F, 1),
  };
}

}  // namespace tendon::gpu
