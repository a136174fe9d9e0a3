// A block's tile of a product by multiply-adds: any types, any alignment, any K. The formula stands at Product in
// gemm.h.
//   x (M, K) X, w, up (N, K) W, each bf16 or f32, or all e4m3 or all i8; sums f32.
// 256 threads make 64 × 64 sums, a 4 × 4 square each; 16 columns of x and w at a time lie in shared memory, transposed,
// while the next ones are on their way into registers. Bytes moved: tiles along N times x, tiles along M times w, out.
#pragma once

#include "backend/gpu/gemm_blocks.cuh"

namespace tendon::gpu {

constexpr int kPlainTile = 64;
constexpr int kPlainDepth = 16;
constexpr int kPlainThreads = 256;

template <class X, class W>
TENDON_KERNEL void __launch_bounds__(kPlainThreads) plain_gemm_kernel(ProductArgs<X, W> a) {
  constexpr int kPitch = kPlainTile + 4;      // of the transposed tiles: 16-byte rows, few bank conflicts
  constexpr int kSumsPitch = kPlainTile + 8;  // of the sums
  constexpr int kLoads = kPlainTile * kPlainDepth / kPlainThreads;
  TENDON_SHARED(float, x_tile, kPlainDepth* kPitch);
  TENDON_SHARED(float, w_tile, kPlainDepth* kPitch);
  TENDON_SHARED(float, sums_tile, kPlainTile* kSumsPitch);

  const GemmEpilogue& e = a.sink.epilogue;
  const int tile_cols = a.sink.gate_up ? kPlainTile / 2 : kPlainTile;  // output columns
  const int first_row = static_cast<int>(blockIdx.x) * kPlainTile;
  const int first_col = static_cast<int>(blockIdx.y) * tile_cols;
  const int begin_k = static_cast<int>(blockIdx.z) * a.steps_per_part * kPlainDepth;
  const int end_part = begin_k + a.steps_per_part * kPlainDepth;
  const int end_k = end_part < a.depth ? end_part : a.depth;

  const int thread = static_cast<int>(threadIdx.x);
  const int load_col = thread % kPlainDepth;
  const int load_row = thread / kPlainDepth;
  float x_next[kLoads];
  float w_next[kLoads];
  const auto load = [&](int k) {
    const int col = k + load_col;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int r = load_row + i * (kPlainThreads / kPlainDepth);
      const int x_row = first_row + r;
      const bool x_valid = col < end_k && x_row < e.rows;
      x_next[i] = x_valid ? widen(a.x[x_row * a.x_stride + col]) : 0.0F;
      // Rows of w alternate between gate and up in groups of eight.
      const int w_row = first_col + (a.sink.gate_up ? r / 16 * 8 + r % 8 : r);
      const W* const w = a.sink.gate_up && r / 8 % 2 == 1 ? a.up : a.w;
      const bool w_valid = col < end_k && w_row < e.cols;
      w_next[i] = w_valid ? widen(w[w_row * a.w_stride + col]) : 0.0F;
    }
  };

  const int row = thread / 16 * 4;
  const int col = thread % 16 * 4;
  float sums[4][4] = {};
  load(begin_k);
  for (int k = begin_k; k < end_k; k += kPlainDepth) {
    block_sync();  // the previous tiles were read
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int r = load_row + i * (kPlainThreads / kPlainDepth);
      x_tile[load_col * kPitch + r] = x_next[i];
      w_tile[load_col * kPitch + r] = w_next[i];
    }
    block_sync();
    load(k + kPlainDepth);
#pragma unroll
    for (int i = 0; i < kPlainDepth; ++i) {
      const Vec<float> xs = load_vec(x_tile + i * kPitch + row);
      const Vec<float> ws = load_vec(w_tile + i * kPitch + col);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sums[r][c] += xs.v[r] * ws.v[c];
      }
    }
  }
  const int first_sum = static_cast<int>(blockIdx.y) * kPlainTile;
  if constexpr (sizeof(X) == 1) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float w_scale = scale_of_column(a, first_sum + col + c);
#pragma unroll
      for (int r = 0; r < 4; ++r) sums[r][c] *= scale_of_row(a, first_row + row + r) * w_scale;
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int c = 0; c < 4; ++c) sums_tile[(row + r) * kSumsPitch + col + c] = sums[r][c];
  }
  block_sync();
  drain<kPlainTile, kPlainTile, kSumsPitch, kPlainThreads>(a.sink, sums_tile, thread, static_cast<int>(blockIdx.z),
                                                           first_row, first_sum);
}

}  // namespace tendon::gpu
