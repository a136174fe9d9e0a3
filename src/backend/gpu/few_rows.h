// What the kernels for few rows ask of their tensors.
#pragma once

#include "backend/gpu/aligned_rows.h"
#include "ops/ops.h"

namespace tendon::gpu {

constexpr int kFewRowsMax = 64;

// Not written by an operation of the plan: may be read before the kernels in front have ended.
inline bool is_constant(const Tensor& t) { return t.value < 0; }
inline bool is_constant(const NormParams& norm) {
  return is_constant(norm.gain) && is_constant(norm.scale) && is_constant(norm.shift);
}

}  // namespace tendon::gpu
