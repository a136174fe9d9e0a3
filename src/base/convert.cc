#include "base/convert.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/parallel.h"
#include "base/simd.h"

namespace tendon {
namespace {

// Elements first..first+n of memory of this type.
void widen_some(DType dtype, const void* data, int64_t first, int64_t n, float* out) noexcept {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, static_cast<const float*>(data) + first, static_cast<size_t>(n) * sizeof(float));
      return;
    case DType::kBf16:
      for (int64_t i = 0; i < n; ++i) out[i] = to_float(static_cast<const Bf16*>(data)[first + i]);
      return;
    default:
      for (int64_t i = 0; i < n; ++i) out[i] = half_to_float(static_cast<const uint16_t*>(data)[first + i]);
  }
}

// The same as `to`, which begins at out.
void convert_some(DType dtype, const void* data, int64_t first, int64_t n, DType to, void* out) noexcept {
  if (dtype == to) {
    const size_t each = dtype_bytes(to);
    std::memcpy(out, static_cast<const char*>(data) + static_cast<size_t>(first) * each, static_cast<size_t>(n) * each);
  } else if (to == DType::kF32) {
    widen_some(dtype, data, first, n, static_cast<float*>(out));
  } else {
    constexpr int64_t kPart = 1024;
    float wide[kPart];
    for (int64_t begin = 0; begin < n; begin += kPart) {
      const int64_t count = std::min(kPart, n - begin);
      widen_some(dtype, data, first + begin, count, wide);
      for (int64_t i = 0; i < count; ++i) static_cast<Bf16*>(out)[begin + i] = to_bf16(wide[i]);
    }
  }
}

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16; }

void require_float(DType dtype) { TENDON_CHECK(is_float(dtype), "cannot widen {}", dtype_name(dtype)); }

}  // namespace

void widen(const Tensor& source, float* out) {
  require_float(source.dtype);
  const int64_t n = source.cols();
  for (int64_t row = 0; row < source.rows(); ++row) {
    widen_some(source.dtype, source.data, row * source.row_stride, n, out + row * n);
  }
}

std::vector<float> widened(const Tensor& source) {
  std::vector<float> out(static_cast<size_t>(source.elements()));
  convert(source, DType::kF32, out.data());
  return out;
}

bool can_convert(DType from, DType to) { return is_float(from) && (to == DType::kF32 || to == DType::kBf16); }

void convert_range(const Tensor& source, int64_t first, int64_t count, DType dtype, void* out) noexcept {
  convert_some(source.dtype, source.data, first, count, dtype, out);
}

void convert(const Tensor& source, DType dtype, void* out) {
  TENDON_CHECK(dtype == DType::kF32 || dtype == DType::kBf16, "cannot convert to {}", dtype_name(dtype));
  require_float(source.dtype);  // here, since nothing may be thrown out of a parallel region
  const int64_t n = source.cols();
  parallel_for(source.rows(), std::max<int64_t>(1, 65536 / std::max<int64_t>(n, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      convert_some(source.dtype, source.data, r * source.row_stride, n, dtype,
                   static_cast<char*>(out) + static_cast<size_t>(r * n) * dtype_bytes(dtype));
    }
  });
}

TENDON_SIMD_CLONES void interleave_planes(const uint8_t* planes, size_t pixels, uint8_t* out) {
  const uint8_t *red = planes, *green = planes + pixels, *blue = planes + 2 * pixels;
  for (size_t i = 0; i < pixels; ++i) {
    out[3 * i] = red[i];
    out[3 * i + 1] = green[i];
    out[3 * i + 2] = blue[i];
  }
}

}  // namespace tendon
