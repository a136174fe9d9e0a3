// The network and the grid of the persistent denoise kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tendon::gpu::denoise {

#ifdef __CUDACC__
#define TENDON_HOST_DEVICE __host__ __device__
#else
#define TENDON_HOST_DEVICE
#endif

// The network: the expert of both published models.
constexpr int kWidth = 1024, kMlp = 4096, kHeads = 8, kHeadDim = 256, kHalfDim = kHeadDim / 2;
constexpr int kQWidth = kHeads * kHeadDim, kQkvWidth = kQWidth + 2 * kHeadDim;
constexpr int kActionDim = 32;

// The grid: one block on a multiprocessor.
constexpr int kBlocks = 128, kWarps = 8, kThreads = kWarps * 32;

constexpr int kChunkBytes = 8192;  // what a block streams at once

// A place in the matrices of a layer (rows: output columns; q | k | v and gate | up stacked).
enum class Matrix { kQkv, kOut, kGateUp, kDown };
struct Element {
  Matrix matrix;
  int row, col;
};

}  // namespace tendon::gpu::denoise
