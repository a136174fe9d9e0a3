// Where the persistent denoise kernels find what π0.5's norms add and multiply by; null for π0.
#pragma once

#include "backend/cuda/denoise/args.h"
#include "backend/cuda/denoise/network.h"
#include "backend/gpu/device/prelude.cuh"

namespace tendon::gpu::denoise {

// Of a table (steps, layers, width).
template <bool kPi05>
TENDON_DEVICE const float* shift_of(const LoopArgs& args, const float* table, int step, int layer, int width) {
  return kPi05 ? table + (int64_t{step} * args.layers + layer) * width : nullptr;
}
// Of norm `norm` of the step (modulation: scale | shift | gate).
template <bool kPi05>
TENDON_DEVICE const float* gate_of(const LoopArgs& args, int step, int norm) {
  return kPi05 ? args.modulation + (int64_t{step} * (2 * args.layers + 1) + norm) * (3 * kWidth) + 2 * kWidth : nullptr;
}

}  // namespace tendon::gpu::denoise
