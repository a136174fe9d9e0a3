// Weights in the ring of the persistent denoise kernel as operands of its products: bf16 as they lie there, codes as
// whole numbers over 128 (layout.h), whose scales the sums are multiplied by.
#pragma once

#include "backend/cuda/denoise/layout.h"
#include "backend/cuda/device/hopper.cuh"

namespace tendon::gpu::denoise {

using namespace hopper;

// The two words that `word` holds the codes of.
TENDON_DEVICE uint2 numbers_of(uint32_t word) {
  const uint32_t exchanged = __byte_perm(word, 0, 0x2301);
  return make_uint2(multiply_bf16_pair(word & kCodeMask, kCodeLift),
                    multiply_bf16_pair(exchanged & kCodeMask, kCodeLift));
}

// Fragments `fragment`, which is even, and the next of the chunk at `chunk`, as mma takes them.
template <bool kCodes>
TENDON_DEVICE void load_weights(uint4& first, uint4& second, uint32_t chunk, int fragment, int lane) {
  const uint32_t at = chunk + lane * 16;
  if constexpr (kCodes) {
    const uint4 codes = load_shared_16(at + (fragment >> 1) * kFragmentBytes);
    const uint2 a[4] = {numbers_of(codes.x), numbers_of(codes.y), numbers_of(codes.z), numbers_of(codes.w)};
    first = make_uint4(a[0].x, a[0].y, a[1].x, a[1].y);
    second = make_uint4(a[2].x, a[2].y, a[3].x, a[3].y);
  } else {
    first = load_shared_16(at + fragment * kFragmentBytes);
    second = load_shared_16(at + (fragment + 1) * kFragmentBytes);
  }
}

// The eight k steps of a warp in the fifth unit, of which lanes 0–15 have two words each.
template <bool kCodes>
TENDON_DEVICE void load_fifth_unit(uint2 (&steps)[8], uint32_t chunk, int warp, int lane) {
  const bool has = lane < 16;
  if constexpr (kCodes) {
    uint4 codes[2] = {};
    if (has) {
#pragma unroll
      for (int i = 0; i < 2; ++i) codes[i] = load_shared_16(chunk + (warp * 16 + lane) * 32 + i * 16);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      steps[4 * i] = numbers_of(codes[i].x);
      steps[4 * i + 1] = numbers_of(codes[i].y);
      steps[4 * i + 2] = numbers_of(codes[i].z);
      steps[4 * i + 3] = numbers_of(codes[i].w);
    }
  } else {
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      steps[step] = make_uint2(0, 0);
      if (has) steps[step] = load_shared_8(chunk + warp * 1024 + step * 128 + lane * 8);
    }
  }
}

}  // namespace tendon::gpu::denoise
