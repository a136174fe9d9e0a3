// Matrix units of waves of 64 lanes, lane by lane as AMD's instruction set manual lays them out, for device/mfma.cuh.
#pragma once

#include <cstdint>

#include "backend/sim/mma_words.h"
#include "backend/sim/simt.h"

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

}  // namespace tendon::simt
