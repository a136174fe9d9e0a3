// Tensor-core tiles and the copies that feed them, lane by lane as the PTX manual lays them out, for device/mma.cuh.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/sim/simt.h"
#include "base/dtype.h"

namespace tendon::simt {

inline float bf16_half(uint32_t pair, int half) {
  return to_float(Bf16{static_cast<uint16_t>(half == 0 ? pair & 0xffffU : pair >> 16)});
}

struct MmaLane {
  float (*d)[4];
  const uint32_t (*a)[4];
  const uint32_t (*b)[2];
};

// d (16, 8) += a (16, 16) · b (16, 8); sums in f32, k ascending.
inline void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const Here& at) {
  MmaLane mine{&d, &a, &b};
  wave_collective(
      "mma", &mine,
      [](void* const* lanes) {
        using Row [[gnu::vector_size(32)]] = float;  // eight columns
        float left[16][16];
        Row right[16];
        for (int l = 0; l < 32; ++l) {
          const auto& lane = *static_cast<const MmaLane*>(lanes[l]);
          const int row = l / 4;
          const int col = l % 4 * 2;
          for (int half = 0; half < 2; ++half) {
            for (int i = 0; i < 4; ++i) left[row + i % 2 * 8][col + i / 2 * 8 + half] = bf16_half((*lane.a)[i], half);
            for (int i = 0; i < 2; ++i) right[col + i * 8 + half][row] = bf16_half((*lane.b)[i], half);
          }
        }
        Row sums[16];
        for (int l = 0; l < 32; ++l) {
          const auto& lane = *static_cast<const MmaLane*>(lanes[l]);
          for (int i = 0; i < 4; ++i) sums[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2] = (*lane.d)[i];
        }
        for (int r = 0; r < 16; ++r) {
          for (int k = 0; k < 16; ++k) sums[r] += left[r][k] * right[k];
        }
        for (int l = 0; l < 32; ++l) {
          const auto& lane = *static_cast<const MmaLane*>(lanes[l]);
          for (int i = 0; i < 4; ++i) (*lane.d)[i] = sums[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
        }
      },
      at);
}

struct MatrixLane {
  const uint16_t* row;
  uint32_t* registers;
};

// kMatrices 8×8 matrices of 16-bit values; lane l gives the address of row l mod 8 of matrix l / 8.
template <int kMatrices, bool kTransposed>
void load_8x8(uint32_t (&r)[kMatrices], const void* p, const Here& at) {
  if (threadIdx.x % 32 < 8 * kMatrices) check_shared(p, 16, 16, "a row of a matrix load", at);
  MatrixLane mine{static_cast<const uint16_t*>(p), r};
  wave_collective(
      kTransposed ? "load_matrices_transposed" : "load_matrices", &mine,
      [](void* const* lanes) {
        for (int m = 0; m < kMatrices; ++m) {
          uint16_t matrix[8][8];
          for (int row = 0; row < 8; ++row)
            std::memcpy(matrix[row], static_cast<const MatrixLane*>(lanes[m * 8 + row])->row, 16);
          for (int l = 0; l < 32; ++l) {
            const int row = l / 4;
            const int col = l % 4 * 2;
            const uint32_t low = kTransposed ? matrix[col][row] : matrix[row][col];
            const uint32_t high = kTransposed ? matrix[col + 1][row] : matrix[row][col + 1];
            static_cast<const MatrixLane*>(lanes[l])->registers[m] = low | high << 16;
          }
        }
      },
      at);
}

}  // namespace tendon::simt
