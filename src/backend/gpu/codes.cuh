// From numbers of a row to codes with a scale (RowScale of base/dtype.h), for the kernels that make them.
#pragma once

#include <type_traits>

#include "backend/gpu/device/prelude.cuh"

namespace tendon::gpu {

TENDON_DEVICE uint32_t pack_codes(E4m3, float low, float high) { return pack_e4m3(low, high); }
TENDON_DEVICE uint32_t pack_codes(int8_t, float low, float high) { return pack_i8(low, high); }

// What counts towards the largest of a row: its magnitude, infinite when it is not finite.
TENDON_DEVICE float code_size(float value) {
  constexpr float kMostFinite = 0x1.fffffep127F;
  const float size = fabsf(value);
  return size <= kMostFinite ? size : __builtin_huge_valf();
}

template <class Code>
struct CodeScale {
  float factor, inverse;
  TENDON_DEVICE explicit CodeScale(float largest) {
    constexpr float kMost = std::is_same_v<Code, E4m3> ? kE4m3Max : 127.0F;
    const float kept = fmaxf(largest, 0x1p-110F);
    inverse = largest > 0.0F ? kMost / kept : 1.0F;
    factor = largest > 0.0F ? kept / kMost : 1.0F;
  }
  // Four numbers as they lie in memory.
  TENDON_DEVICE uint32_t four(float a, float b, float c, float d) const {
    return pack_codes(Code{}, a * inverse, b * inverse) | pack_codes(Code{}, c * inverse, d * inverse) << 16;
  }
};

}  // namespace tendon::gpu
