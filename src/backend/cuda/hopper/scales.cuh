// From a warpgroup's sums to numbers: of codes, times the scales of their rows.
#pragma once

#include "backend/cuda/hopper/ring.cuh"
#include "backend/gpu/codes.cuh"

namespace tendon::gpu::hopper {

// The scales of a tile's codes, as a thread keeps them while its warpgroup multiplies.
template <class T>
struct TileScales {
  float x[2];              // of tokens `thread` and `thread` + 128 of the tile
  float w[T::kBlocks][2];  // of the thread's rows; of gate and up, or a head's halves, eight of each in turn
  TENDON_DEVICE TileScales(const TileArgs& a, int first_col, int first_token) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = first_token + thread + i * 128;
      x[i] = token < a.rows ? __ldcg(a.x_scales + token) : 0.0F;
    }
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        constexpr bool kGateUp = T::kTail == Tail::kGateUp;
        const int warp = thread / 32;
        int col = lane() / 4;
        if constexpr (T::kTail == Tail::kRope) {
          const int in_all = first_col + block * 64;
          const int head_col = in_all / (2 * a.rope.half) * (2 * a.rope.half);
          col += head_col + (in_all - head_col) / 2 + warp * 8 + h * a.rope.half;
        } else if constexpr (T::kPairsColumns) {
          col = column_of<T>(first_col + block * 64, warp, h);
        } else if constexpr (T::kPairsBlocks) {
          col = first_col + (warp * 8 + col) * 2 + block;
        } else {
          col += first_col + (kGateUp ? block * 32 + warp * 8 : block * 64 + warp * 16 + h * 8);
        }
        w[block][h] = col < a.cols ? (kGateUp && h == 1 ? a.up_scales : a.w_scales)[col] : 0.0F;
        if (T::kPairsBlocks && h == 1 && col < a.cols) w[block][h] *= a.factors[col];
      }
    }
  }
  // Tokens' scales go round through shared memory.
  TENDON_DEVICE static uint32_t shared(const Ring<T>& ring, int warpgroup) {
    return ring.turn(warpgroup) + T::kBufferBytes;
  }
  TENDON_DEVICE void share(const Ring<T>& ring, int warpgroup) const {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const uint32_t to = shared(ring, warpgroup) + thread * 4;
    warpgroup_sync(1 + warpgroup);  // it is read no more
    if (thread < T::kTokens) store_shared(to, x[0]);
    if (thread + 128 < T::kTokens) store_shared(to + 512, x[1]);
    warpgroup_sync(1 + warpgroup);
  }
  // Behind share(): what four sums of a thread are, of a group of eight tokens. They are read anew for every block, for
  // registers are scarce.
  template <class Sum>
  TENDON_DEVICE void apply(const Ring<T>& ring, int warpgroup, int group, int block, const Sum (&sums)[4],
                           float (&y)[4]) const {
    float of_tokens[2];
    load_two(shared(ring, warpgroup) + (group * 8 + lane() % 4 * 2) * 4, of_tokens);
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = static_cast<float>(sums[i]) * (of_tokens[i % 2] * w[block][i / 2]);
  }
};

template <class T>
struct NoScales {
  TENDON_DEVICE NoScales(const TileArgs&, int, int) {}
  TENDON_DEVICE void share(const Ring<T>&, int) const {}
  TENDON_DEVICE void apply(const Ring<T>&, int, int, int, const float (&sums)[4], float (&y)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = sums[i];
  }
};

template <class T>
using ScalesOf = std::conditional_t<T::kScaled, TileScales<T>, NoScales<T>>;

// A warpgroup's sums of a tile and what makes numbers of them.
template <class T, class Sum>
struct TileSums {
  const Sum (&sums)[T::kBlocks][4 * T::kGroups];
  const ScalesOf<T>& scales;
  const Ring<T>& ring;
  int warpgroup;
  // Of eight tokens, for two tokens and two rows of a thread.
  TENDON_DEVICE void numbers(int group, int block, float (&y)[4]) const {
    Sum own[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) own[i] = sums[block][4 * group + i];
    scales.apply(ring, warpgroup, group, block, own, y);
  }
};

}  // namespace tendon::gpu::hopper
