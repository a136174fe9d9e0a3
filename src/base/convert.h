// Conversion of whole host tensors between float types, and of pictures between layouts.
#pragma once

#include <vector>

#include "base/tensor.h"

namespace tendon {

// Writes the elements of an f32, bf16 or f16 host tensor as f32, row by row without gaps.
void widen(const Tensor& source, float* out);
std::vector<float> widened(const Tensor& source);

// Writes the elements of an f32, bf16 or f16 host tensor as f32 or bf16 (round to nearest even), in parallel.
void convert(const Tensor& source, DType dtype, void* out);

// True when convert() knows how to write `from` as `to`.
bool can_convert(DType from, DType to);
// Elements first..first+count of a contiguous tensor, by the calling thread alone. The types must be convertible.
void convert_range(const Tensor& source, int64_t first, int64_t count, DType dtype, void* out) noexcept;

// Three planes of `pixels` bytes → (pixels, 3).
void interleave_planes(const uint8_t* planes, size_t pixels, uint8_t* out);

}  // namespace tendon
