#include "base/convert.h"

#include <cstring>

#include "base/check.h"
#include "base/parallel.h"

namespace tendon {
namespace {

void widen_row(const Tensor& source, int64_t row, float* out) {
  const int64_t n = source.cols();
  const int64_t at = row * source.row_stride;
  switch (source.dtype) {
    case DType::kF32:
      std::memcpy(out, source.as<float>() + at, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::kBf16:
      for (int64_t i = 0; i < n; ++i) out[i] = to_float(source.as<Bf16>()[at + i]);
      return;
    case DType::kF16:
      for (int64_t i = 0; i < n; ++i) out[i] = half_to_float(source.as<uint16_t>()[at + i]);
      return;
    default:
      TENDON_CHECK(false, "cannot widen {}", dtype_name(source.dtype));
  }
}

}  // namespace

void widen(const Tensor& source, float* out) {
  for (int64_t row = 0; row < source.rows(); ++row) widen_row(source, row, out + row * source.cols());
}

std::vector<float> widened(const Tensor& source) {
  std::vector<float> out(static_cast<size_t>(source.elements()));
  convert(source, DType::kF32, out.data());
  return out;
}

void convert(const Tensor& source, DType dtype, void* out) {
  TENDON_CHECK(dtype == DType::kF32 || dtype == DType::kBf16, "cannot convert to {}", dtype_name(dtype));
  // Checked here, since nothing may be thrown out of a parallel region.
  TENDON_CHECK(source.dtype == DType::kF32 || source.dtype == DType::kBf16 || source.dtype == DType::kF16,
               "cannot widen {}", dtype_name(source.dtype));
  const int64_t n = source.cols();
  parallel_for(source.rows(), std::max<int64_t>(1, 65536 / std::max<int64_t>(n, 1)), [&](int64_t begin, int64_t end) {
    std::vector<float> row(dtype == DType::kBf16 ? static_cast<size_t>(n) : 0);
    for (int64_t r = begin; r < end; ++r) {
      if (dtype == DType::kF32) {
        widen_row(source, r, static_cast<float*>(out) + r * n);
        continue;
      }
      widen_row(source, r, row.data());
      for (int64_t i = 0; i < n; ++i) static_cast<Bf16*>(out)[r * n + i] = to_bf16(row[static_cast<size_t>(i)]);
    }
  });
}

}  // namespace tendon
