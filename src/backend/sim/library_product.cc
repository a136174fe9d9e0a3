#include "backend/sim/library_product.h"

#include <cmath>

namespace tendon::sim {
namespace {

float at(const Tensor& t, int64_t row, int64_t col) {
  const int64_t i = row * t.row_stride + col;
  if (t.dtype == DType::kI8) return static_cast<float>(t.as<int8_t>()[i]) * t.scales[row];
  if (t.dtype == DType::kE4m3) return to_float(t.as<E4m3>()[i]) * t.scales[row];
  return t.dtype == DType::kBf16 ? to_float(t.as<Bf16>()[i]) : t.as<float>()[i];
}

}  // namespace

void multiply(const gpu::GemmArgs& args) {
  for (int64_t m = 0; m < args.out.rows(); ++m) {
    for (int64_t n = 0; n < args.out.cols(); ++n) {
      float sum = 0;
      for (int64_t k = 0; k < args.x.cols(); ++k) sum += at(args.x, m, k) * at(args.w, n, k);
      if (args.bias.defined()) sum += at(args.bias, 0, n);
      if (args.gelu) sum = sum / (1.0F + std::exp(-2.0F * 0.7978845608028654F * (sum + 0.044715F * sum * sum * sum)));
      if (args.residual.defined()) sum += at(args.residual, m, n);
      const int64_t i = m * args.out.row_stride + n;
      if (args.out.dtype == DType::kBf16) {
        args.out.as<Bf16>()[i] = to_bf16(sum);
      } else {
        args.out.as<float>()[i] = sum;
      }
    }
  }
}

}  // namespace tendon::sim
