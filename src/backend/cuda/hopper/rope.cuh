// Rotated heads of a tile: a warpgroup's sums finished, to q and to the cache.
#pragma once

#include "backend/cuda/hopper/epilogue.cuh"

namespace tendon::gpu::hopper {

// Where a token's row goes (negative: nowhere), and eight angles.
struct Angles {
  int target = -1;
  float cosines[8] = {};
  float sines[8] = {};
};

// A head's columns d and d + D/2 alternate by eight in a tile (the copy interleaves them): where they are turned, a
// thread has eight of both of a token, rotates them and sends them where q, or the cache's keys and values, are.
template <class T, class Sum>
TENDON_DEVICE void finish_rope(const TileSums<T, Sum>& sums, const TileArgs& a, const Place<T>& place, int first_col,
                               int first_token) {
  const Ring<T>& ring = sums.ring;
  const int warpgroup = sums.warpgroup;
  constexpr float kNoBias[T::kBlocks][2] = {};
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int first_group = place.part * T::kGroups / T::kParts;
  const int groups = (place.part + 1) * T::kGroups / T::kParts - first_group;
  const int chunks = (groups + kChunkGroups - 1) / kChunkGroups;
  const int pair = thread % 4;  // of pieces: 2 · pair and the one behind it
  const int token = thread / 4;
  const int end = min(a.rows, first_token + (first_group + groups) * 8);
  warpgroup_sync(1 + warpgroup);  // the buffers are read no more
  uint32_t buffer = ring.turn(warpgroup);
  const uint32_t both = buffer + buffer + T::kTurnBytes;
#pragma unroll 1
  for (int pass = 0; pass < T::kBlocks; ++pass) {
    const int in_all = first_col + pass * 64;
    const int head = in_all / (2 * a.rope.half);
    const int in_head = (in_all - head * 2 * a.rope.half) / 2 + pair * 8;
    const int head_col = head * 2 * a.rope.half;
    const bool is_q = head_col < a.rope.q_cols;
    const bool is_v = head_col >= a.rope.q_cols + a.rope.k_cols;
    // What chunk `chunk` needs from global memory, two chunks ahead.
    Angles ahead[2];
    const auto look_up = [&](int chunk) {
      Angles found;
      const int row = first_token + first_group * 8 + chunk * kTurnTokens + token;
      if (chunk >= chunks || row >= end || in_all >= a.cols) return found;
      found.target = is_q ? row : a.rope.cache_rows[row];
      if (is_v) return found;
      const float* const angles =
          a.rope.table + static_cast<int64_t>(a.rope.positions[row]) * 2 * a.rope.half + in_head;
      load_eight(angles, found.cosines);
      load_eight(angles + a.rope.half, found.sines);
      return found;
    };
    ahead[0] = look_up(0);
    ahead[1] = look_up(1);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk, buffer = both - buffer) {
      const Angles here = ahead[0];
      const int target = here.target;
      ahead[0] = ahead[1];
      ahead[1] = look_up(chunk + 2);
      turn_chunk<T, Sum, 0, 0>(sums, buffer, place.part, chunk, pass, kNoBias);
      warpgroup_sync(1 + warpgroup);
      if (target < 0) continue;
      Octet low = load_octet(buffer + turned(token, 2 * pair));
      Octet high = load_octet(buffer + turned(token, 2 * pair + 1));
      if (!is_v) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float x[2] = {low_bf16(low.pair[j]), high_bf16(low.pair[j])};
          const float y[2] = {low_bf16(high.pair[j]), high_bf16(high.pair[j])};
          const float* const c = &here.cosines[2 * j];
          const float* const s = &here.sines[2 * j];
          low.pair[j] = pack_bf16(x[0] * c[0] - y[0] * s[0], x[1] * c[1] - y[1] * s[1]);
          high.pair[j] = pack_bf16(y[0] * c[0] + x[0] * s[0], y[1] * c[1] + x[1] * s[1]);
        }
      }
      Bf16* to;
      if (is_q) {
        to = a.rope.q + target * a.rope.q_stride + head_col;
      } else if (is_v) {
        to = a.rope.v + target * a.rope.cache_stride + (head_col - a.rope.q_cols - a.rope.k_cols);
      } else {
        to = a.rope.k + target * a.rope.cache_stride + (head_col - a.rope.q_cols);
      }
      *reinterpret_cast<Octet*>(to + in_head) = low;
      *reinterpret_cast<Octet*>(to + in_head + a.rope.half) = high;
    }
  }
}

}  // namespace tendon::gpu::hopper
