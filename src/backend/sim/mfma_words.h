// Matrix units of waves of 64 lanes, lane by lane as AMD's instruction set manual lays them out, for device/mfma.cuh.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "backend/sim/mma_words.h"
#include "backend/sim/simt.h"
#include "base/dtype.h"

namespace tendon::simt {

template <int kRows>
struct MfmaLane {
  float (*d)[kRows * kRows / 64];
  const uint32_t (*a)[4];
  const uint32_t (*b)[4];
};

// d (R, R) += a (R, 2 D) · b (2 D, R) with D = 256 / R; sums in f32. As two products of depth D: lane l holds depths
// 4·(l / R) + i of the first in its values 0 .. 3, of the second in 4 .. 7; and in value r of d row
// D·(r / 4) + 4·(l / R) + r mod 4 of column l mod R.
template <int kRows>
void mfma(float (&d)[kRows * kRows / 64], const uint32_t (&a)[4], const uint32_t (&b)[4], const Here& at) {
  static_assert(kRows == 16 || kRows == 32);
  MfmaLane<kRows> mine{&d, &a, &b};
  wave_collective(
      "mfma", &mine,
      [](void* const* lanes) {
        using Row [[gnu::vector_size(kRows * sizeof(float))]] = float;  // all columns
        constexpr int kHalf = 256 / kRows;
        float left[kRows][2 * kHalf];
        Row right[2 * kHalf];
        Row sums[kRows];
        const auto sum_row = [](int l, int r) { return r / 4 * kHalf + l / kRows * 4 + r % 4; };
        for (int l = 0; l < 64; ++l) {
          const auto& lane = *static_cast<const MfmaLane<kRows>*>(lanes[l]);
          for (int i = 0; i < 8; ++i) {
            const int k = i / 4 * kHalf + l / kRows * 4 + i % 4;
            left[l % kRows][k] = bf16_half((*lane.a)[i / 2], i % 2);
            right[k][l % kRows] = bf16_half((*lane.b)[i / 2], i % 2);
          }
          for (int r = 0; r < kRows * kRows / 64; ++r) sums[sum_row(l, r)][l % kRows] = (*lane.d)[r];
        }
        for (int r = 0; r < kRows; ++r) {
          for (int k = 0; k < 2 * kHalf; ++k) sums[r] += left[r][k] * right[k];
        }
        for (int l = 0; l < 64; ++l) {
          const auto& lane = *static_cast<const MfmaLane<kRows>*>(lanes[l]);
          for (int r = 0; r < kRows * kRows / 64; ++r) (*lane.d)[r] = sums[sum_row(l, r)][l % kRows];
        }
      },
      at);
}

// Whether the card's units read e4m3 codes as FNUZ ones (gfx942), or as OCP ones (gfx950).
inline bool reads_fnuz = true;

// FNUZ E4M3: bias 8, so half of what the same bits are as OCP; NaN is 0x80 alone.
inline float fnuz_value(uint8_t code) {
  if (code == 0x80U) return __builtin_nanf("");
  const int exponent = code >> 3 & 15;
  const float mantissa = static_cast<float>(code & 7) / 8.0F;
  const float size = exponent == 0 ? std::ldexp(mantissa, -7) : std::ldexp(1.0F + mantissa, exponent - 8);
  return (code & 0x80U) != 0 ? -size : size;
}

struct MfmaCodes {
  uint8_t code[32];
};
template <class Sum, int kCount>
struct MfmaCodesLane {
  Sum (*d)[kCount];
  const MfmaCodes *a, *b;
};

// d (R, R) += a (R, 2048 / R) · b (2048 / R, R), R² = 64 kCount: sums in f32 of e4m3, in i32 of i8. Four products one
// after the other, as the instructions of gfx942 take them: lane l holds depths 8·(l / R) + i of each, in eight of its
// codes; and d as above.
template <class Sum, int kCount>
void mfma_codes(Sum (&d)[kCount], const MfmaCodes& a, const MfmaCodes& b, const Here& at) {
  constexpr int kRows = kCount == 4 ? 16 : 32;
  static_assert(kRows * kRows == 64 * kCount);
  using Lane = MfmaCodesLane<Sum, kCount>;
  Lane mine{&d, &a, &b};
  wave_collective(
      "mfma of codes", &mine,
      [](void* const* lanes) {
        using Row [[gnu::vector_size(kRows * sizeof(Sum))]] = Sum;  // all columns
        constexpr int kDepth = 512 / kRows;                         // of one instruction
        constexpr int kHalf = 256 / kRows;
        const auto value = [](uint8_t code) -> Sum {
          if constexpr (std::is_integral_v<Sum>) {
            return static_cast<int8_t>(code);
          } else {
            return reads_fnuz ? fnuz_value(code) : to_float(E4m3{code});
          }
        };
        const auto lane = [&](int l) -> const Lane& { return *static_cast<const Lane*>(lanes[l]); };
        const auto sum_row = [](int l, int r) { return r / 4 * kHalf + l / kRows * 4 + r % 4; };
        Sum left[kRows][4 * kDepth];
        Row right[4 * kDepth];
        Row sums[kRows];
        for (int l = 0; l < 64; ++l) {
          for (int i = 0; i < 32; ++i) {
            const int k = i / 8 * kDepth + l / kRows * 8 + i % 8;
            left[l % kRows][k] = value(lane(l).a->code[i]);
            right[k][l % kRows] = value(lane(l).b->code[i]);
          }
          for (int r = 0; r < kCount; ++r) sums[sum_row(l, r)][l % kRows] = (*lane(l).d)[r];
        }
        for (int r = 0; r < kRows; ++r) {
          for (int k = 0; k < 4 * kDepth; ++k) sums[r] += left[r][k] * right[k];
        }
        for (int l = 0; l < 64; ++l) {
          for (int r = 0; r < kCount; ++r) (*lane(l).d)[r] = sums[sum_row(l, r)][l % kRows];
        }
      },
      at);
}

}  // namespace tendon::simt
