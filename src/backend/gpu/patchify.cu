// patchify: pixels to patch rows.  images (N, height, width, 3) u8 or f32, out (N·T, 3·P·P) f32.
// One thread an output value; reads are gathered from a 14-row window that stays in the first-level cache.
#include "backend/gpu/elementwise.cuh"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {

namespace {

struct PatchValue {
  const uint8_t* bytes;  // null when the pictures are f32
  const float* floats;
  int64_t height, width, patch;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const {
    const int64_t across = width / patch;
    const int64_t per_image = across * (height / patch);
    const int64_t image = row / per_image;
    const int64_t token = row % per_image;
    const int64_t channel = col / (patch * patch);
    const int64_t y = token / across * patch + col / patch % patch;
    const int64_t x = token % across * patch + col % patch;
    const int64_t at = ((image * height + y) * width + x) * 3 + channel;
    if (bytes == nullptr) return floats[at];
    return __fsub_rn(__fmul_rn(__fdiv_rn(static_cast<float>(bytes[at]), 255.0F), 2.0F), 1.0F);
  }
};

}  // namespace

void launch_patchify(const Patchify& a, Stream stream) {
  const bool is_u8 = a.images.dtype == DType::kU8;
  launch_elementwise(a.out, stream,
                     PatchValue{is_u8 ? a.images.as<uint8_t>() : nullptr, is_u8 ? nullptr : a.images.as<float>(),
                                a.images.shape[1], a.images.shape[2], a.patch});
}

}  // namespace tendon::gpu
