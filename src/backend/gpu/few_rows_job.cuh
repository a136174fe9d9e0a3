// What the kernels of few_rows.cuh are told.
#pragma once

#include "backend/gpu/device/prelude.cuh"
#include "backend/gpu/few_rows.h"
#include "ops/ops.h"

namespace tendon::gpu {

enum class FewRowsNorm { kNone, kRms, kAdaRms };

struct FewRowsInput {
  const Bf16* x;
  int64_t x_stride;
  int rows, depth;
  const float *gain, *shift;  // norm: 1 + gain, plus shift; null without
  float eps;
};

// A job has kGroups, kWaves (of a group), kTiles, kBlocks (groups of 32 values of depth that a wave takes in one
// round), kRowBlocks (of x at a time), kNorm, FewRowsInput input, and
//   const Bf16* weights(int tile)      the first of eight weight rows of the block's tile, weight_stride() apart
//   Constants constants(Place)         what finish needs that no kernel in front writes
//   Early early(Place)                 what finish needs that one does write
//   void finish(Place, const float* sums, Constants, Early)   sums: kWaves × (16, kPitch)
struct FewRowsPlace {
  int first_row, thread;  // thread: within the group
};

}  // namespace tendon::gpu
