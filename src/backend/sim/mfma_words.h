// Matrix units of waves of 64 lanes, lane by lane as AMD's instruction set manual lays them out, for device/mfma.cuh.
#pragma once

#include <cstdint>

#include "backend/sim/mma_words.h"
#include "backend/sim/simt.h"

namespace tendon::simt {

struct MfmaLane {
  float (*d)[4];
  const uint32_t (*a)[4];
  const uint32_t (*b)[4];
};

// d (16, 16) += a (16, 32) · b (32, 16); sums in f32. As two products of depth 16: lane l holds depths 4·(l / 16) + i
// of the first in its values 0 .. 3, of the second in 4 .. 7.
inline void mfma_16x16x32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[4], const Here& at) {
  MfmaLane mine{&d, &a, &b};
  wave_collective(
      "mfma", &mine,
      [](void* const* lanes) {
        using Row [[gnu::vector_size(64)]] = float;  // sixteen columns
        float left[16][32];
        Row right[32];
        Row sums[16];
        for (int l = 0; l < 64; ++l) {
          const auto& lane = *static_cast<const MfmaLane*>(lanes[l]);
          for (int i = 0; i < 8; ++i) {
            const int k = i / 4 * 16 + l / 16 * 4 + i % 4;
            left[l % 16][k] = bf16_half((*lane.a)[i / 2], i % 2);
            right[k][l % 16] = bf16_half((*lane.b)[i / 2], i % 2);
          }
          for (int r = 0; r < 4; ++r) sums[l / 16 * 4 + r][l % 16] = (*lane.d)[r];
        }
        for (int r = 0; r < 16; ++r) {
          for (int k = 0; k < 32; ++k) sums[r] += left[r][k] * right[k];
        }
        for (int l = 0; l < 64; ++l) {
          const auto& lane = *static_cast<const MfmaLane*>(lanes[l]);
          for (int r = 0; r < 4; ++r) (*lane.d)[r] = sums[l / 16 * 4 + r][l % 16];
        }
      },
      at);
}

}  // namespace tendon::simt
