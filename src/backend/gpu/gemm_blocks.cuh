// What all kinds of tiles of a bf16 product share: arguments, the order of blocks, how rows lie in shared memory.
#pragma once

#include "backend/gpu/gemm_epilogue.cuh"

namespace tendon::gpu {

struct TileArgs {
  const Bf16 *x, *w, *up;
  int64_t x_stride, w_stride;
  GemmSink sink;
  int depth;           // K
  int steps_per_part;  // steps of kDepth that one block walks
};

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

template <int kDepth>
TENDON_DEVICE int permuted(int row, int chunk) {
  return kDepth == 64 ? chunk ^ (row & 7) : chunk ^ ((row >> 1) & 3);
}

}  // namespace tendon::gpu
