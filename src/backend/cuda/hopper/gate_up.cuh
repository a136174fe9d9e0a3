// GELU(gate) · up of a tile: a warpgroup's sums finished, as bf16 or as codes.
#pragma once

#include "backend/cuda/hopper/epilogue.cuh"

namespace tendon::gpu::hopper {

// Eight tokens × a pair of a thread: gate in y[0], y[1], up in y[2], y[3]. What the operations round in between stays
// in f32: each rounding costs two of some thirty instructions of a tail that is a tenth of the product.
TENDON_DEVICE uint32_t finished_gate_up(const float* y) {
  return pack_bf16(gelu_tanh(y[0]) * y[2], gelu_tanh(y[1]) * y[3]);
}

// The same for gate and up, where a thread has both of a pair: finished in registers, then turned. Unrolled (rolled
// like the other: 3 % slower).
template <class T, class Sum>
TENDON_DEVICE void finish_gate_up(const TileSums<T, Sum>& sums, const TileArgs& a, int first_col, int first_token) {
  const Ring<T>& ring = sums.ring;
  const int warpgroup = sums.warpgroup;
  static_assert(T::kBlocks == 2 && T::kParts == 1 && !T::kMakesCodes);
  constexpr int kChunks = (T::kGroups + kChunkGroups - 1) / kChunkGroups;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int warp = thread / 32;
  const int matrix = lane() / 8;
  const int piece = thread % kPieces;
  const int token = thread / kPieces;
  const int col = first_col + piece * 8;
  warpgroup_sync(1 + warpgroup);  // the buffers are read no more
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const uint32_t buffer = ring.turn(warpgroup) + chunk % 2 * T::kTurnBytes;
#pragma unroll
    for (int local = 0; local < kChunkGroups; local += 2) {  // two blocks × two groups
      const int group = chunk * kChunkGroups + local;
      if (group >= T::kGroups) continue;
      const uint32_t to = buffer + turned((local + matrix / 2) * 8 + lane() % 8, matrix % 2 * 4 + warp);
      const auto finished = [&](int of_group, int block) {
        float y[4];
        sums.numbers(of_group, block, y);
        return finished_gate_up(y);
      };
      const uint32_t first = finished(group, 0);
      const uint32_t second = finished(group, 1);
      if (group + 1 < T::kGroups) {
        const uint32_t third = finished(group + 1, 0);
        store_transposed(to, first, second, third, finished(group + 1, 1));
      } else {
        store_transposed(to, first, second);
      }
    }
    warpgroup_sync(1 + warpgroup);
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int in_tile = chunk * kTurnTokens + i * kTokenStep + token;
      const Octet y = load_octet(buffer + turned(i * kTokenStep + token, piece));
      const int row = first_token + in_tile;
      if (in_tile < T::kTokens && row < a.rows && col < a.cols) {
        *reinterpret_cast<Octet*>(static_cast<Bf16*>(a.out) + row * a.out_stride + col) = y;
      }
    }
  }
}

// Finishes a warpgroup's sums of gate and up as codes. The columns of its two blocks alternate, so that a thread has
// two neighbours of a token: their codes are a 16-bit word, and 64 tokens × 64 columns are turned at once.
template <class T, class Sum>
TENDON_DEVICE void finish_gate_up_codes(const TileSums<T, Sum>& sums, const TileArgs& a, int first_col,
                                        int first_token) {
  const Ring<T>& ring = sums.ring;
  const int warpgroup = sums.warpgroup;
  static_assert(T::kPairsBlocks && T::kBlocks == 2);
  constexpr int kGroupsAtOnce = T::kTurnBytes / (8 * 64);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int warp = thread / 32;
  const int piece = thread % 4;
  // Two tokens' words of a group.
  const auto words = [&](int group) {
    float out[T::kBlocks][2];
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
      float y[4];
      sums.numbers(group, block, y);
#pragma unroll
      for (int i = 0; i < 2; ++i) out[block][i] = gelu_tanh(y[i]) * y[2 + i];
    }
    using Code = typename T::Result;
    return pack_codes(Code{}, out[0][0], out[1][0]) | pack_codes(Code{}, out[0][1], out[1][1]) << 16;
  };
#pragma unroll
  for (int first = 0; first < T::kGroups; first += kGroupsAtOnce) {
    const uint32_t buffer = ring.turn(warpgroup) + first / kGroupsAtOnce % 2 * T::kTurnBytes;
#pragma unroll
    for (int local = 0; local < kGroupsAtOnce && first + local < T::kGroups; local += 4) {
      const int group = first + local;
      const uint32_t to = buffer + swizzled_64((local + lane() / 8) * 8 + lane() % 8, warp);
      const uint32_t word = words(group);
      if (group + 3 < T::kGroups) {
        const uint32_t second = words(group + 1);
        const uint32_t third = words(group + 2);
        store_transposed(to, word, second, third, words(group + 3));
      } else if (group + 1 < T::kGroups) {
        store_transposed(to, word, words(group + 1));
        if (group + 2 < T::kGroups) store_transposed(to + 2 * 8 * 64, words(group + 2));
      } else {
        store_transposed(to, word);
      }
    }
    warpgroup_sync(1 + warpgroup);
#pragma unroll
    for (int i = 0; i < kGroupsAtOnce / 4; ++i) {
      const int token = thread / 4 + i * 32;
      const int row = first_token + first * 8 + token;
      const int col = first_col + piece * 16;
      if (first * 8 + token < T::kTokens && row < a.rows && col < a.cols) {
        auto* const out = static_cast<typename T::Result*>(a.out) + row * a.out_stride + col;
        *reinterpret_cast<Octet*>(out) = load_octet(buffer + swizzled_64(token, piece));
      }
    }
  }
}

}  // namespace tendon::gpu::hopper
