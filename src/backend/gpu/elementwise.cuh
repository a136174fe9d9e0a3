// Kernels that map (row, column) to one value: the shared loop. Each operation gives a functor with
//   float operator()(int64_t row, int64_t col) const
// whose result is stored in `out`. Consecutive threads take consecutive columns, so that accesses coalesce; traffic is
// the inputs and the output once.
#pragma once

#include "backend/gpu/device/prelude.cuh"
#include "backend/gpu/gpu_rt.h"
#include "base/tensor.h"

namespace tendon::gpu {

// A matrix on the device.
template <class T>
struct Matrix {
  T* data;
  int64_t stride;
  explicit Matrix(const Tensor& t) : data(t.as<T>()), stride(t.row_stride) {}
  TENDON_DEVICE float at(int64_t row, int64_t col) const { return widen(data[row * stride + col]); }
};

template <class T, class F>
TENDON_KERNEL void elementwise_kernel(T* out, int64_t stride, int64_t rows, int64_t cols, F f) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) out[row * stride + col] = narrow<T>(f(row, col));
}

template <class F>
void launch_elementwise(const Tensor& out, Stream stream, const F& f) {
  if (out.elements() == 0) return;
  constexpr int kThreads = 256;
  const dim3 grid(static_cast<unsigned>(ceil_div(out.cols(), kThreads)),
                  static_cast<unsigned>(out.rows() < 65535 ? out.rows() : 65535));
  with_float_type(out.dtype, [&]<class T>(T) {
    launch<elementwise_kernel<T, F>>({.grid = grid, .block = kThreads, .stream = stream}, out.as<T>(), out.row_stride,
                                     out.rows(), out.cols(), f);
  });
}

}  // namespace tendon::gpu
