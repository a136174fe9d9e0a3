// Attention tiles on mma.m16n8k16 (bf16, f32 sums). A block takes 64 query rows and a range of keys: K and V tiles of
// 32 keys go through shared memory. Two groups of four waves take every other tile and join at the end: one group alone
// leaves the tensor cores waiting for shared memory. Head widths up to 256, padded to a multiple of 16.
#pragma once

#include "backend/gpu/attention_args.cuh"
#include "backend/gpu/device/mma.cuh"

namespace tendon::gpu::attention {

constexpr int kGroupThreads = 128;
constexpr int kGroups = 2;
constexpr int kThreads = kGroups * kGroupThreads;

// Adds the second group's part to the first's, through shared memory that nobody reads any more: (kRows, kWidth + 4)
// f32 sums, then maximum and denominator.
template <int kWidth>
TENDON_DEVICE void join_groups(float (&sums)[kWidth / 8][4], float (&maximum)[2], float (&denominator)[2],
                               float* memory, int group, int warp_row) {
  constexpr int kPitch = kWidth + 4;
  const int first = warp_row + lane() / 4;
  if (group > 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float* const to = memory + (first + 8 * h) * kPitch;
#pragma unroll
      for (int d = 0; d < kWidth / 8; ++d) {
        to[d * 8 + lane() % 4 * 2] = sums[d][2 * h];
        to[d * 8 + lane() % 4 * 2 + 1] = sums[d][2 * h + 1];
      }
      if (lane() % 4 == 0) to[kWidth] = maximum[h], to[kWidth + 1] = denominator[h];
    }
  }
  block_sync();
  if (group > 0) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float* const from = memory + (first + 8 * h) * kPitch;
    const float joint = fmaxf(maximum[h], from[kWidth]);
    const float mine = maximum[h] == -INFINITY ? 0.0F : __expf(maximum[h] - joint);
    const float other = from[kWidth] == -INFINITY ? 0.0F : __expf(from[kWidth] - joint);
    maximum[h] = joint;
    denominator[h] = mine * denominator[h] + other * from[kWidth + 1];
#pragma unroll
    for (int d = 0; d < kWidth / 8; ++d) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& sum = sums[d][2 * h + i];
        sum = mine * sum + other * from[d * 8 + lane() % 4 * 2 + i];
      }
    }
  }
}

// kWidth: head width rounded up to 16; shared rows are 8 values longer, so that 8 rows fall into different banks.
template <int kWidth>
TENDON_KERNEL void __launch_bounds__(kThreads) attention_kernel(Args a) {
  constexpr int kPitch = kWidth + 8;
  constexpr int kChunks = kWidth / 8;
  constexpr int kTileValues = 2 * kKeys * kPitch;  // K and V
  TENDON_DYNAMIC_SHARED(memory);
  Bf16* const q_tile = reinterpret_cast<Bf16*>(memory);  // (kRows, kPitch)
  const int group = wave() / 4;
  Bf16* const tiles_of_group = q_tile + kRows * kPitch + group * 2 * kTileValues;  // 2 × (K, V) × (kKeys, kPitch)

  const int split = static_cast<int>(blockIdx.y);
  const int b = static_cast<int>(blockIdx.z) / a.kv_heads;
  const int kv = static_cast<int>(blockIdx.z) % a.kv_heads;
  const int first_row = static_cast<int>(blockIdx.x) * kRows;
  const int last_key = a.visible.of(b, a.queries - 1);  // the longest range: later queries see more
  const int all_tiles = (last_key + kKeys - 1) / kKeys;
  const int tiles_per_split = (all_tiles + a.splits - 1) / a.splits;
  const int first_tile = split * tiles_per_split;
  const int end_tile = first_tile + tiles_per_split < all_tiles ? first_tile + tiles_per_split : all_tiles;
  const int rounds = (end_tile - first_tile + kGroups - 1) / kGroups;  // of a tile for each group

  const Bf16* const q = static_cast<const Bf16*>(a.q);
  const Bf16* const k =
      static_cast<const Bf16*>(a.k) + static_cast<int64_t>(b) * a.capacity * a.k_stride + kv * a.width;
  const Bf16* const v =
      static_cast<const Bf16*>(a.v) + static_cast<int64_t>(b) * a.capacity * a.k_stride + kv * a.width;

  // The tile of a round, none beyond the end. Every thread of the group calls it.
  const auto load_keys = [&](int round) {
    const int tile = first_tile + round * kGroups + group;
    Bf16* const k_tile = tiles_of_group + (round & 1) * kTileValues;
    Bf16* const v_tile = k_tile + kKeys * kPitch;
    for (int i = static_cast<int>(threadIdx.x) % kGroupThreads; i < kKeys * kChunks; i += kGroupThreads) {
      const int key = tile * kKeys + i / kChunks;
      const int col = i % kChunks * 8;
      const bool valid = tile < end_tile && key < last_key && col < a.width;
      const int64_t at = valid ? key * a.k_stride + col : 0;
      copy_async(k_tile + i / kChunks * kPitch + col, k + at, valid);
      copy_async(v_tile + i / kChunks * kPitch + col, v + at, valid);
    }
    copy_commit();
  };

  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = first_row + i / kChunks;
    const int col = i % kChunks * 8;
    const bool valid = row < a.rows() && col < a.width;
    copy_async(q_tile + i / kChunks * kPitch + col, q + (valid ? a.offset(b, kv, row, a.q_stride) + col : 0), valid);
  }
  load_keys(0);

  // This thread holds rows r0 = wave·16 + lane/4 and r0 + 8 of each 16×8 fragment, columns 2·(lane mod 4) + {0, 1}.
  float sums[kWidth / 8][4] = {};
  float maximum[2] = {-INFINITY, -INFINITY};
  float denominator[2] = {0, 0};
  const int warp_row = wave() % 4 * 16;
  int limit[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + warp_row + lane() / 4 + 8 * h;
    limit[h] = row < a.rows() ? a.visible.of(b, row / a.group()) : 0;
  }

  for (int round = 0; round < rounds; ++round) {
    if (round + 1 < rounds) {
      load_keys(round + 1);
      copy_wait<1>();
    } else {
      copy_wait<0>();
    }
    block_sync();
    const int tile = first_tile + round * kGroups + group;
    const Bf16* const k_tile = tiles_of_group + (round & 1) * kTileValues;
    const Bf16* const v_tile = k_tile + kKeys * kPitch;

    float logits[kKeys / 8][4] = {};
#pragma unroll
    for (int d = 0; d < kWidth; d += 16) {
      uint32_t qa[4];
      load_matrices(qa, q_tile + (warp_row + lane() % 16) * kPitch + d + lane() / 16 * 8);
#pragma unroll
      for (int n = 0; n < kKeys; n += 16) {
        uint32_t kb[4];  // two column blocks of eight keys
        load_matrices(kb, k_tile + (n + lane() % 8 + lane() / 16 * 8) * kPitch + d + lane() / 8 % 2 * 8);
        mma_bf16(logits[n / 8], qa, {kb[0], kb[1]});
        mma_bf16(logits[n / 8 + 1], qa, {kb[2], kb[3]});
      }
    }
    // Mask, running maximum, exponentials.
    float tile_max[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = tile * kKeys + n * 8 + lane() % 4 * 2 + i % 2;
        const bool visible = tile < end_tile && key < limit[i / 2] && !a.visible.masked(b, key < a.capacity ? key : 0);
        logits[n][i] = visible ? logits[n][i] * a.scale : -INFINITY;
        tile_max[i / 2] = fmaxf(tile_max[i / 2], logits[n][i]);
      }
    }
    float rescale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      tile_max[h] = fmaxf(tile_max[h], shuffle_xor(tile_max[h], 1));
      tile_max[h] = fmaxf(tile_max[h], shuffle_xor(tile_max[h], 2));
      const float next = fmaxf(maximum[h], tile_max[h]);
      rescale[h] = next == -INFINITY ? 1.0F : __expf(maximum[h] - next);
      maximum[h] = next;
      denominator[h] *= rescale[h];
    }
    uint32_t probabilities[kKeys / 16][4];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[i] = logits[n][i] == -INFINITY ? 0.0F : __expf(logits[n][i] - maximum[i / 2]);
        denominator[i / 2] += p[i];
      }
      probabilities[n / 2][n % 2 * 2] = pack_bf16(p[0], p[1]);
      probabilities[n / 2][n % 2 * 2 + 1] = pack_bf16(p[2], p[3]);
    }
#pragma unroll
    for (int d = 0; d < kWidth / 8; ++d) {
      sums[d][0] *= rescale[0], sums[d][1] *= rescale[0];
      sums[d][2] *= rescale[1], sums[d][3] *= rescale[1];
    }
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
#pragma unroll
      for (int d = 0; d < kWidth; d += 16) {
        uint32_t vb[4];
        load_matrices_transposed(vb, v_tile + (n * 16 + lane() % 16) * kPitch + d + lane() / 16 * 8);
        mma_bf16(sums[d / 8], probabilities[n], {vb[0], vb[1]});
        mma_bf16(sums[d / 8 + 1], probabilities[n], {vb[2], vb[3]});
      }
    }
    block_sync();  // the slot may be overwritten
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    denominator[h] += shuffle_xor(denominator[h], 1);
    denominator[h] += shuffle_xor(denominator[h], 2);
  }
  if (rounds <= 0) {  // nothing to do for this split: the copies of the queries are still under way
    copy_wait<0>();
    block_sync();
  }
  join_groups<kWidth>(sums, maximum, denominator, reinterpret_cast<float*>(q_tile), group, warp_row);
  if (group > 0) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first_row + warp_row + lane() / 4 + 8 * h;
    if (row >= a.rows()) continue;
    if (a.splits == 1) {
      const float inverse = denominator[h] > 0 ? 1.0F / denominator[h] : 0.0F;
      Bf16* const out = static_cast<Bf16*>(a.out) + a.offset(b, kv, row, a.out_stride);
#pragma unroll
      for (int d = 0; d < kWidth / 8; ++d) {
        const int col = d * 8 + lane() % 4 * 2;
        if (col < a.width) {
          *reinterpret_cast<uint32_t*>(out + col) = pack_bf16(sums[d][2 * h] * inverse, sums[d][2 * h + 1] * inverse);
        }
      }
    } else {
      float* const part =
          a.parts + ((static_cast<int64_t>(blockIdx.z) * a.rows() + row) * a.splits + split) * (a.width + 2);
#pragma unroll
      for (int d = 0; d < kWidth / 8; ++d) {
        const int col = d * 8 + lane() % 4 * 2;
        if (col < a.width) part[col] = sums[d][2 * h], part[col + 1] = sums[d][2 * h + 1];
      }
      if (lane() % 4 == 0) part[a.width] = maximum[h], part[a.width + 1] = denominator[h];
    }
  }
}

template <int kWidth>
constexpr int tile_shared_bytes() {
  return (kRows + kGroups * 4 * kKeys) * (kWidth + 8) * static_cast<int>(sizeof(Bf16));
}

}  // namespace tendon::gpu::attention
