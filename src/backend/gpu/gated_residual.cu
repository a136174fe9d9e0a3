// gated_residual: out = x + round(y · round(gate)), inner roundings to y's type.  x, y, out (M, W), gate (W) f32.
#include "backend/gpu/elementwise.cuh"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

template <class X, class Y>
struct GatedSum {
  Matrix<X> x;
  Matrix<Y> y;
  const float* gate;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const {
    return x.at(row, col) + rounded<Y>(y.at(row, col) * rounded<Y>(gate[col]));
  }
};

}  // namespace

void launch_gated_residual(const GatedResidual& a, Stream stream) {
  with_float_type(a.x.dtype, [&]<class X>(X) {
    with_float_type(a.y.dtype, [&]<class Y>(Y) {
      launch_elementwise(a.out, stream, GatedSum<X, Y>{Matrix<X>(a.x), Matrix<Y>(a.y), a.gate.as<float>()});
    });
  });
}

}  // namespace tendon::gpu
