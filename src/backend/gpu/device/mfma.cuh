// Matrix units of waves of 64 lanes. AMD since CDNA3.
#pragma once

#include "backend/gpu/device/prelude.cuh"

#ifdef TENDON_SIMT
#include "backend/sim/mfma_words.h"
#endif

namespace tendon::gpu {

static_assert(kWarpSize == 64);

#ifdef TENDON_SIMT

inline void mfma_bf16(float (&d)[4], const Octet& a, const Octet& b, TENDON_HERE) {
  simt::mfma<16>(d, a.pair, b.pair, here);
}
inline void mfma_bf16(float (&d)[16], const Octet& a, const Octet& b, TENDON_HERE) {
  simt::mfma<32>(d, a.pair, b.pair, here);
}

#else

// An octet as the unit takes it: whole on gfx950, elsewhere in halves.
#ifdef __gfx950__
using MfmaValues = __bf16 __attribute__((ext_vector_type(8)));
#else
struct MfmaValues {
  short __attribute__((ext_vector_type(4))) half[2];
};
#endif

// d (16, 16) += a (16, 32) · b (32, 16). Lane l holds values 8·(l / 16) .. + 7 of the depth: of row l mod 16 of a, of
// column l mod 16 of b; and of d column l mod 16 of rows 4·(l / 16) + {0, 1, 2, 3}. A card whose unit takes depth 16
// does it in two halves, each with half of every lane's values: a sum over depth may take any order that a and b share.
TENDON_DEVICE void mfma_bf16(float (&d)[4], const Octet& a, const Octet& b) {
  using Sums = float __attribute__((ext_vector_type(4)));
  Sums sums = {d[0], d[1], d[2], d[3]};
#ifdef __gfx950__
  sums = __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(MfmaValues, a), __builtin_bit_cast(MfmaValues, b),
                                                 sums, 0, 0, 0);
#else
  const auto x = __builtin_bit_cast(MfmaValues, a);
  const auto y = __builtin_bit_cast(MfmaValues, b);
  sums = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x.half[0], y.half[0], sums, 0, 0, 0);
  sums = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x.half[1], y.half[1], sums, 0, 0, 0);
#endif
  d[0] = sums.x, d[1] = sums.y, d[2] = sums.z, d[3] = sums.w;
}

// d (32, 32) += a (32, 16) · b (16, 32). Lane l holds values 8·(l / 32) .. + 7 of the depth: of row l mod 32 of a, of
// column l mod 32 of b; and in its value r of d, column l mod 32 of row 8·(r / 4) + 4·(l / 32) + r mod 4. In two halves
// on cards whose unit takes depth 8.
TENDON_DEVICE void mfma_bf16(float (&d)[16], const Octet& a, const Octet& b) {
  using Sums = float __attribute__((ext_vector_type(16)));
  Sums sums;
#pragma unroll
  for (int i = 0; i < 16; ++i) sums[i] = d[i];
#ifdef __gfx950__
  sums = __builtin_amdgcn_mfma_f32_32x32x16_bf16(__builtin_bit_cast(MfmaValues, a), __builtin_bit_cast(MfmaValues, b),
                                                 sums, 0, 0, 0);
#else
  const auto x = __builtin_bit_cast(MfmaValues, a);
  const auto y = __builtin_bit_cast(MfmaValues, b);
  sums = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(x.half[0], y.half[0], sums, 0, 0, 0);
  sums = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(x.half[1], y.half[1], sums, 0, 0, 0);
#endif
#pragma unroll
  for (int i = 0; i < 16; ++i) d[i] = sums[i];
}

#endif

}  // namespace tendon::gpu
