// What all kinds of products of our own share: arguments, scales of codes, the order of blocks, how rows lie in shared
// memory.
#pragma once

#include "backend/gpu/gemm_epilogue.cuh"

namespace tendon::gpu {

template <class X, class W = X>
struct ProductArgs {
  const X* x;
  const W *w, *up;
  const float *x_scales, *w_scales, *up_scales;  // of rows, of codes alone
  int64_t x_stride, w_stride;
  GemmSink sink;
  int depth;           // K
  int steps_per_part;  // steps of the tile's depth that one block walks
};

// Scales of what the sums of a row, and of a column, were multiplied from; 0 outside the matrices. Columns count sums,
// which alternate between gate and up where there are both.
template <class X, class W>
TENDON_DEVICE float scale_of_row(const ProductArgs<X, W>& a, int row) {
  return row < a.sink.epilogue.rows ? a.x_scales[row] : 0.0F;
}
template <class X, class W>
TENDON_DEVICE float scale_of_column(const ProductArgs<X, W>& a, int sum) {
  const int row = a.sink.gate_up ? sum / 16 * 8 + sum % 8 : sum;  // of w or up
  if (row >= a.sink.epilogue.cols) return 0.0F;
  return (a.sink.gate_up && sum / 8 % 2 == 1 ? a.up_scales : a.w_scales)[row];
}

// Blocks that follow each other share rows of x and columns of w: groups of kGroup tiles along M go through all tiles
// along N.
struct TilePlace {
  int row, col;
};
TENDON_DEVICE TilePlace place_of_block(int block, int row_tiles, int col_tiles) {
  constexpr int kGroup = 8;
  const int group = block / (kGroup * col_tiles);
  const int left = row_tiles - group * kGroup;
  const int rows = left < kGroup ? left : kGroup;
  const int at = block - group * kGroup * col_tiles;
  return {group * kGroup + at % rows, at / rows};
}

// Where a 16-byte chunk of a row of kChunks lies.
template <int kChunks>
TENDON_DEVICE int permuted(int row, int chunk) {
  return kChunks == 8 ? chunk ^ (row & 7) : chunk ^ ((row >> 1) & 3);
}

}  // namespace tendon::gpu
