// Conversion of whole host tensors between float types.
#pragma once

#include <vector>

#include "base/tensor.h"

namespace tendon {

// Writes the elements of an f32, bf16 or f16 host tensor as f32, row by row without gaps.
void widen(const Tensor& source, float* out);
std::vector<float> widened(const Tensor& source);

// Writes the elements of an f32, bf16 or f16 host tensor as f32 or bf16 (round to nearest even), in parallel.
void convert(const Tensor& source, DType dtype, void* out);

}  // namespace tendon
