// residual_add: out = x + y in f32, one rounding.  x, y, out (M, W) bf16 or f32.
#include "backend/gpu/elementwise.cuh"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

template <class X, class Y>
struct Sum {
  Matrix<X> x;
  Matrix<Y> y;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const { return x.at(row, col) + y.at(row, col); }
};

}  // namespace

void launch_residual_add(const ResidualAdd& a, Stream stream) {
  with_float_type(a.x.dtype, [&]<class X>(X) {
    with_float_type(a.y.dtype, [&]<class Y>(Y) {
      launch_elementwise(a.out, stream, Sum<X, Y>{Matrix<X>(a.x), Matrix<Y>(a.y)});
    });
  });
}

}  // namespace tendon::gpu
