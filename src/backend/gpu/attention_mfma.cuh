// Attention tiles on the matrix units of waves of 64 lanes (bf16, f32 sums). A block of four waves takes 64 query rows,
// 16 a wave, and a range of keys: K and V tiles of 32 keys go through shared memory, the next tile is on its way into
// registers while this one is used.
//
// Both products are computed transposed: logits (keys, rows) = k · qᵀ, out (width, rows) = vᵀ · pᵀ. A lane then has one
// query row, l mod 16, in all of it, its probabilities are the operand of the second product as they are, and it stores
// four neighbouring columns. For this V lies transposed in shared memory; its keys stand in the order in which the
// first product leaves them: group g = l / 16 has keys 4g .. 4g + 3 and 16 + 4g .. + 3. Head widths up to 256, padded
// to a multiple of 16, for the logits of 32.
#pragma once

#include "backend/gpu/attention_args.cuh"
#include "backend/gpu/device/mfma.cuh"

namespace tendon::gpu::attention {

constexpr int kThreads = 256;
static_assert(kRows == kThreads / kWarpSize * 16 && kKeys == 32);

// Of shared memory: K (kKeys, kPitch), then V (kWidth, kKeys), whose 16-byte chunks are permuted by the row number.
template <int kWidth>
struct Layout {
  static constexpr int kDepth = (kWidth + 31) / 32 * 32;
  static constexpr int kPitch = kDepth + 8;  // eight rows fall into different banks
  static constexpr int kKValues = kKeys * kPitch;
  static constexpr int kBytes = (kKValues + kWidth * kKeys) * static_cast<int>(sizeof(Bf16));
  static constexpr int kKCopies = (kKeys * kDepth / 8 + kThreads - 1) / kThreads;  // octets a thread
  static constexpr int kVUnits = kKeys / 4 * kWidth / 8;                           // of four keys × eight columns
  static constexpr int kVCopies = (kVUnits + kThreads - 1) / kThreads;
};
TENDON_DEVICE int v_chunk(int row, int chunk) { return chunk ^ ((row >> 1) & 3); }

template <int kWidth>
constexpr int tile_shared_bytes() {
  static_assert(Layout<kWidth>::kBytes <= 64 << 10);
  return Layout<kWidth>::kBytes;
}

template <int kWidth>
TENDON_KERNEL void __launch_bounds__(kThreads) attention_kernel(Args a) {
  using L = Layout<kWidth>;
  TENDON_DYNAMIC_SHARED(memory);
  Bf16* const k_tile = reinterpret_cast<Bf16*>(memory);
  Bf16* const v_tile = k_tile + L::kKValues;

  const int split = static_cast<int>(blockIdx.y);
  const int b = static_cast<int>(blockIdx.z) / a.kv_heads;
  const int kv = static_cast<int>(blockIdx.z) % a.kv_heads;
  const int last_key = a.visible.of(b, a.queries - 1);  // the longest range: later queries see more
  const int all_tiles = (last_key + kKeys - 1) / kKeys;
  const int tiles_per_split = (all_tiles + a.splits - 1) / a.splits;
  const int first_tile = split * tiles_per_split;
  const int end_tile = first_tile + tiles_per_split < all_tiles ? first_tile + tiles_per_split : all_tiles;
  const int64_t base = static_cast<int64_t>(b) * a.capacity * a.k_stride + kv * a.width;
  const Bf16* const k = static_cast<const Bf16*>(a.k) + base;
  const Bf16* const v = static_cast<const Bf16*>(a.v) + base;

  const int thread = static_cast<int>(threadIdx.x);
  Octet k_next[L::kKCopies];
  Octet v_next[L::kVCopies][4];
  const auto value = [&](const Bf16* from, int key, int col) {  // zeros outside
    return key < last_key && col < a.width ? load_octet(from + key * a.k_stride + col) : Octet{};
  };
  const auto load = [&](int tile) {
#pragma unroll
    for (int i = 0; i < L::kKCopies; ++i) {
      const int at = i * kThreads + thread;
      const int row = at / (L::kDepth / 8);
      k_next[i] = row < kKeys ? value(k, tile * kKeys + row, at % (L::kDepth / 8) * 8) : Octet{};
    }
#pragma unroll
    for (int i = 0; i < L::kVCopies; ++i) {
      const int unit = i * kThreads + thread;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        v_next[i][j] = unit < L::kVUnits ? value(v, tile * kKeys + unit % 8 * 4 + j, unit / 8 * 8) : Octet{};
    }
  };
  const auto store = [&] {
#pragma unroll
    for (int i = 0; i < L::kKCopies; ++i) {
      const int at = i * kThreads + thread;
      const int row = at / (L::kDepth / 8);
      if (row < kKeys) store_octet(k_tile + row * L::kPitch + at % (L::kDepth / 8) * 8, k_next[i]);
    }
#pragma unroll
    for (int i = 0; i < L::kVCopies; ++i) {
      const int unit = i * kThreads + thread;
      if (unit >= L::kVUnits) continue;
      const int group = unit % 4;
      const int half = unit % 8 / 4;
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const int row = unit / 8 * 8 + c;
        const auto bits = [&](int j) { return v_next[i][j].pair[c / 2] >> (c % 2 * 16) & 0xffffU; };
        store_quad(v_tile + row * kKeys + v_chunk(row, group) * 8 + half * 4, bits(0) | bits(1) << 16,
                   bits(2) | bits(3) << 16);
      }
    }
  };

  const int row = static_cast<int>(blockIdx.x) * kRows + wave() * 16 + lane() % 16;
  const int group = lane() / 16;
  const bool has_row = row < a.rows();
  const int limit = has_row ? a.visible.of(b, row / a.group()) : 0;
  Octet q[L::kDepth / 32];
#pragma unroll
  for (int d = 0; d < L::kDepth / 32; ++d) {
    const int col = d * 32 + group * 8;
    q[d] = has_row && col < a.width ? load_octet(static_cast<const Bf16*>(a.q) + a.offset(b, kv, row, a.q_stride) + col)
                                    : Octet{};
  }

  float sums[kWidth / 16][4] = {};
  float maximum = -INFINITY;
  float denominator = 0;  // of this lane's keys
  if (first_tile < end_tile) load(first_tile);
#pragma unroll 1
  for (int tile = first_tile; tile < end_tile; ++tile) {
    block_sync();  // the last tile was read
    store();
    block_sync();
    if (tile + 1 < end_tile) load(tile + 1);

    float logits[2][4] = {};
#pragma unroll
    for (int d = 0; d < L::kDepth / 32; ++d) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const Octet keys = load_octet(k_tile + (n * 16 + lane() % 16) * L::kPitch + d * 32 + group * 8);
        mfma(logits[n], keys, q[d]);
      }
    }
    float tile_max = -INFINITY;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = tile * kKeys + n * 16 + group * 4 + i;
        const bool visible = key < limit && !a.visible.masked(b, key < a.capacity ? key : 0);
        logits[n][i] = visible ? logits[n][i] * a.scale : -INFINITY;
        tile_max = fmaxf(tile_max, logits[n][i]);
      }
    }
    tile_max = fmaxf(tile_max, shuffle_xor(tile_max, 16));
    tile_max = fmaxf(tile_max, shuffle_xor(tile_max, 32));
    const float joint = fmaxf(maximum, tile_max);
    const float rescale = joint == -INFINITY ? 1.0F : fast_exp(maximum - joint);
    maximum = joint;
    denominator *= rescale;
    Octet probabilities;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[i] = logits[n][i] == -INFINITY ? 0.0F : fast_exp(logits[n][i] - maximum);
        denominator += p[i];
      }
      probabilities.pair[2 * n] = pack_bf16(p[0], p[1]);
      probabilities.pair[2 * n + 1] = pack_bf16(p[2], p[3]);
    }
#pragma unroll
    for (int d = 0; d < kWidth / 16; ++d) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[d][i] *= rescale;
      const int at = d * 16 + lane() % 16;
      mfma(sums[d], load_octet(v_tile + at * kKeys + v_chunk(at, group) * 8), probabilities);
    }
  }
  denominator += shuffle_xor(denominator, 16);
  denominator += shuffle_xor(denominator, 32);

  if (!has_row) return;
  if (a.splits == 1) {
    const float inverse = denominator > 0 ? 1.0F / denominator : 0.0F;
    Bf16* const out = static_cast<Bf16*>(a.out) + a.offset(b, kv, row, a.out_stride);
#pragma unroll
    for (int d = 0; d < kWidth / 16; ++d) {
      const int col = d * 16 + group * 4;
      if (col < a.width) {
        store_quad(out + col, pack_bf16(sums[d][0] * inverse, sums[d][1] * inverse),
                   pack_bf16(sums[d][2] * inverse, sums[d][3] * inverse));
      }
    }
  } else {
    float* const part =
        a.parts + ((static_cast<int64_t>(blockIdx.z) * a.rows() + row) * a.splits + split) * (a.width + 2);
#pragma unroll
    for (int d = 0; d < kWidth / 16; ++d) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int col = d * 16 + group * 4 + i;
        if (col < a.width) part[col] = sums[d][i];
      }
    }
    if (group == 0) part[a.width] = maximum, part[a.width + 1] = denominator;
  }
}

}  // namespace tendon::gpu::attention
