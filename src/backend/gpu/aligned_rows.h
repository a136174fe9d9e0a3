// What kernels with 16-byte accesses ask of their tensors, in one place.
#pragma once

#include <cstdint>

#include "base/tensor.h"

namespace tendon::gpu {

inline bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Rows of bf16 that begin at multiples of 16 bytes: eight columns are one access, as far as the columns go.
inline bool aligned_rows(const Tensor& t) {
  return t.dtype == DType::kBf16 && t.row_stride % 8 == 0 && is_aligned(t.data);
}
// Rows of codes that begin at multiples of 16 bytes: sixteen columns are one access.
inline bool aligned_code_rows(const Tensor& t) {
  return is_scaled(t.dtype) && t.row_stride % 16 == 0 && is_aligned(t.data);
}
// The same as aligned_rows(), and columns in whole octets.
inline bool rows_of_octets(const Tensor& t) { return aligned_rows(t) && t.cols() % 8 == 0; }

}  // namespace tendon::gpu
