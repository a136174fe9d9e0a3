// out = epilogue(norm(x) · wᵀ) for up to 64 rows, where the weights are the traffic: the shared body of the action
// expert's products.
//
// A block owns kTiles groups of eight weight rows and the whole depth K, which its waves share out. It reads its part
// of the weights once, all of it in flight at once, and before it waits for the kernels in front. Rows of x are taken
// sixteen at a time; the waves' sums meet in shared memory and are added in wave order, so that repeats give the same
// bytes. The kernel itself depends on the matrix units: few_rows_mma.cuh, few_rows_mfma.cuh.
#pragma once

#include "backend/gpu/few_rows_job.cuh"
#include "backend/gpu/gpu_rt.h"

#if TENDON_WAVE_LANES == 64
#include "backend/gpu/few_rows_mfma.cuh"
#else
#include "backend/gpu/few_rows_mma.cuh"
#endif

namespace tendon::gpu {

// Sum of the waves' parts of one value.
template <class Job>
TENDON_DEVICE float few_rows_sum(const float* sums, int row, int col) {
  constexpr int kPitch = FewRowsShape<Job>::kPitch;
  float total = 0;
#pragma unroll
  for (int i = 0; i < Job::kWaves; ++i) total += sums[(i * 16 + row) * kPitch + col];
  return total;
}

template <class Job>
void launch_few_rows(const Job& job, int64_t blocks, Stream stream) {
  using Shape = FewRowsShape<Job>;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(blocks)),
                          .block = dim3(Shape::kThreads),
                          .shared_bytes = Shape::kWeightBytes + Job::kGroups * Shape::kSums * sizeof(float),
                          .stream = stream,
                          .overlaps = true};
  if (job.input.depth == Shape::kDepth) {
    launch<few_rows_kernel<Job, true>>(shape, job);
  } else {
    launch<few_rows_kernel<Job, false>>(shape, job);
  }
}

}  // namespace tendon::gpu
