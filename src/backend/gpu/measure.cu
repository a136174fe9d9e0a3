// What the tuner needs on a card: random numbers, and how far two results lie apart.
#include "backend/gpu/elementwise.cuh"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

TENDON_DEVICE uint32_t mixed(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return static_cast<uint32_t>(x >> 32);
}

// Nearly normal: the sum of four uniform numbers, with unit variance.
struct RandomNumber {
  int64_t cols;
  uint64_t seed;
  float scale;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const {
    float sum = 0;
    for (uint64_t i = 0; i < 4; ++i) {
      const uint64_t index = (static_cast<uint64_t>(row * cols + col) * 4 + i) ^ (seed << 40);
      sum += static_cast<float>(mixed(index + 1)) * 0x1p-32F - 0.5F;
    }
    return sum * 1.7320508F * scale;
  }
};

template <class T>
TENDON_KERNEL void largest_difference_kernel(Matrix<T> a, Matrix<T> b, int64_t rows, int64_t cols, float relative,
                                             float absolute, int* worst) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  float largest = 0;
  for (int64_t row = blockIdx.y; row < rows && col < cols; row += gridDim.y) {
    const float x = a.at(row, col);
    const float y = b.at(row, col);
    const float share = fabsf(x - y) / (relative * fmaxf(fabsf(x), fabsf(y)) + absolute);
    largest = share <= largest ? largest : share == share ? share : INFINITY;  // also from NaN
  }
  largest = wave_max(largest);
  if (lane() == 0) atomicMax(worst, __float_as_int(largest));  // positive floats are ordered as integers
}

}  // namespace

void launch_random(const Tensor& out, uint64_t seed, float scale, Stream stream) {
  launch_elementwise(out, stream, RandomNumber{out.cols(), seed, scale});
}

void launch_largest_difference(const Tensor& a, const Tensor& b, float relative, float absolute, float* worst,
                               Stream stream) {
  constexpr int kThreads = 256;
  const dim3 grid(static_cast<unsigned>(ceil_div(a.cols(), kThreads)),
                  static_cast<unsigned>(a.rows() < 256 ? a.rows() : 256));
  with_float_type(a.dtype, [&]<class T>(T) {
    launch<largest_difference_kernel<T>>({.grid = grid, .block = kThreads, .stream = stream}, Matrix<T>(a),
                                         Matrix<T>(b), a.rows(), a.cols(), relative, absolute,
                                         reinterpret_cast<int*>(worst));
  });
}

}  // namespace tendon::gpu
