// patchify: out[(n, r, c), (channel, i, j)] = pixel(n, P·r + i, P·c + j, channel); u8 v becomes v / 255 · 2 - 1 in f32.
#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

template <class Pixel>
TENDON_CPU_INLINE float pixel_value(Pixel value) {
  if constexpr (sizeof(Pixel) == 1) {
    return static_cast<float>(value) / 255.0F * 2.0F - 1.0F;
  } else {
    return value;
  }
}

template <class Pixel>
void patchify_rows(const Patchify& a, int64_t begin, int64_t end) {
  const int64_t patch = a.patch;
  const int64_t down = a.images.shape[1] / patch;
  const int64_t across = a.images.shape[2] / patch;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t image = token / (down * across);
    const int64_t r = token / across % down;
    const int64_t c = token % across;
    float* out = row_pointer<float>(a.out, token, 0);
    for (int64_t i = 0; i < patch; ++i) {
      // A row of the flattened image tensor is one pixel.
      const int64_t first = (image * a.images.shape[1] + patch * r + i) * a.images.shape[2] + patch * c;
      for (int64_t j = 0; j < patch; ++j) {
        const Pixel* pixel = row_pointer<const Pixel>(a.images, first + j, 0);
        for (int64_t channel = 0; channel < 3; ++channel) {
          out[(channel * patch + i) * patch + j] = pixel_value(pixel[channel]);
        }
      }
    }
  }
}

bool can_patchify(const Patchify& a) {
  return (a.images.dtype == DType::kF32 || a.images.dtype == DType::kU8) && a.out.dtype == DType::kF32;
}

Status run_patchify(const Patchify& a, const char*) {
  parallel_for(a.out.rows(), row_grain(a.out.cols()), [&](int64_t begin, int64_t end) {
    if (a.images.dtype == DType::kU8) {
      patchify_rows<uint8_t>(a, begin, end);
    } else {
      patchify_rows<float>(a, begin, end);
    }
  });
  return Status::ok();
}

}  // namespace

CpuOp cpu_patchify() { return plain_op<Patchify, can_patchify, run_patchify>(); }

}  // namespace tendon
