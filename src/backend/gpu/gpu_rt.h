// The GPU runtime behind one set of names.
#pragma once

#include <cuda_runtime.h>

#include "base/dtype.h"

namespace tendon::gpu {

using Stream = cudaStream_t;

// Throws Error(kDevice) naming the call.
void require(cudaError_t status, const char* what);

// Calls f(T{}) with the element type of a float tensor; kernels are templates over it.
template <class F>
void with_float_type(DType dtype, F&& f) {
  if (dtype == DType::kBf16) {
    f(Bf16{});
  } else {
    f(float{});
  }
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace tendon::gpu
