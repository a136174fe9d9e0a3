// The vendor library's own plain matrix product, to compare with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/dtype.h"

namespace tendon::op_check {

// One call of out (M, N) f32 = x (M, K) · w (N, K)ᵀ on memory of its own, weights as stored; `copies` weight matrices
// are used in turn.
std::function<void()> library_matmul(int64_t m, int64_t n, int64_t k, DType dtype, int copies);

}  // namespace tendon::op_check
