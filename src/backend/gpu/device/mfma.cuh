// Matrix units of waves of 64 lanes. AMD since CDNA3.
#pragma once

#include <type_traits>

#include "backend/gpu/device/prelude.cuh"

#ifdef TENDON_SIMT
#include "backend/sim/mfma_words.h"
#endif

namespace tendon::gpu {

static_assert(kWarpSize == 64);

// 32 codes of a row, e4m3 or i8, as they lie in memory sixteen by sixteen.
struct Codes {
  Octet part[2];
};

#ifdef TENDON_SIMT

inline void mfma(float (&d)[4], const Octet& a, const Octet& b, TENDON_HERE) {
  simt::mfma<16>(d, a.pair, b.pair, here);
}
inline void mfma(float (&d)[16], const Octet& a, const Octet& b, TENDON_HERE) {
  simt::mfma<32>(d, a.pair, b.pair, here);
}
template <class Sum, int kCount>
void mfma(Sum (&d)[kCount], const Codes& a, const Codes& b, TENDON_HERE) {
  simt::mfma_codes(d, std::bit_cast<simt::MfmaCodes>(a), std::bit_cast<simt::MfmaCodes>(b), here);
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
TENDON_DEVICE void mfma(float (&d)[4], const Octet& a, const Octet& b) {
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
TENDON_DEVICE void mfma(float (&d)[16], const Octet& a, const Octet& b) {
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

template <class T, int kCount>
using MfmaVector = T __attribute__((ext_vector_type(kCount)));

// Products of codes by single instructions: the widest that there are, of a lane's whole share, its halves or quarters.
#ifdef __gfx950__
TENDON_DEVICE auto multiplied(MfmaVector<float, 4> d, MfmaVector<int, 8> a, MfmaVector<int, 8> b) {
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(a, b, d, 0, 0, 0, 0, 0, 0);  // e4m3 both, no scales
}
TENDON_DEVICE auto multiplied(MfmaVector<float, 16> d, MfmaVector<int, 8> a, MfmaVector<int, 8> b) {
  return __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(a, b, d, 0, 0, 0, 0, 0, 0);
}
TENDON_DEVICE auto multiplied(MfmaVector<int, 4> d, MfmaVector<int, 4> a, MfmaVector<int, 4> b) {
  return __builtin_amdgcn_mfma_i32_16x16x64_i8(a, b, d, 0, 0, 0);
}
TENDON_DEVICE auto multiplied(MfmaVector<int, 16> d, MfmaVector<int, 4> a, MfmaVector<int, 4> b) {
  return __builtin_amdgcn_mfma_i32_32x32x32_i8(a, b, d, 0, 0, 0);
}
template <class Sum>
using MfmaShare = MfmaVector<int, std::is_same_v<Sum, float> ? 8 : 4>;
#else
TENDON_DEVICE auto multiplied(MfmaVector<float, 4> d, long a, long b) {
  return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, b, d, 0, 0, 0);
}
TENDON_DEVICE auto multiplied(MfmaVector<float, 16> d, long a, long b) {
  return __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(a, b, d, 0, 0, 0);
}
TENDON_DEVICE auto multiplied(MfmaVector<int, 4> d, long a, long b) {
  return __builtin_amdgcn_mfma_i32_16x16x32_i8(a, b, d, 0, 0, 0);
}
TENDON_DEVICE auto multiplied(MfmaVector<int, 16> d, long a, long b) {
  return __builtin_amdgcn_mfma_i32_32x32x16_i8(a, b, d, 0, 0, 0);
}
template <class Sum>
using MfmaShare = long;
#endif

// d (R, R) += a (R, 2048 / R) · b (2048 / R, R) of codes, R 16 or 32; of e4m3 d is f32, of i8 i32. Lane l holds codes
// of row l mod R of a and column l mod R of b, lanes l + R·i those of other depths: of which does not matter, as long
// as it is the same for a and b. Sums as above. Of e4m3, see mfma_scale().
template <class Sum, int kCount>
TENDON_DEVICE void mfma(Sum (&d)[kCount], const Codes& a, const Codes& b) {
  using Share = MfmaShare<Sum>;
  constexpr int kShares = static_cast<int>(sizeof(Codes) / sizeof(Share));
  struct Shares {
    Share share[kShares];
  };
  const auto x = __builtin_bit_cast(Shares, a);
  const auto y = __builtin_bit_cast(Shares, b);
  MfmaVector<Sum, kCount> sums;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = d[i];
#pragma unroll
  for (int i = 0; i < kShares; ++i) sums = multiplied(sums, x.share[i], y.share[i]);
#pragma unroll
  for (int i = 0; i < kCount; ++i) d[i] = sums[i];
}

#endif

// The scale of a row of codes, as what mfma() made of it has to be multiplied by. The unit of gfx942 reads e4m3 codes
// as FNUZ, half of each number: a product is a quarter. It also reads NaN as a number; but only a row whose scale is
// infinite has that code, and whatever is made of it is NaN.
template <class Code>
TENDON_DEVICE float mfma_scale(float scale) {
  if constexpr (!std::is_same_v<Code, E4m3>) return scale;
  constexpr float kMostFinite = 0x1.fffffep127F;
#ifdef TENDON_SIMT
  const float factor = simt::reads_fnuz ? 4.0F : 1.0F;
#elif defined(__gfx950__)
  constexpr float factor = 1.0F;
#else
  constexpr float factor = 4.0F;
#endif
  return scale <= kMostFinite ? scale * factor : __uint_as_float(0x7fc00000U);
}

}  // namespace tendon::gpu
