// Attention over cached and own keys in the persistent denoise kernel: the parts, and their joining.
#pragma once

#include "backend/cuda/denoise/block.cuh"

namespace tendon::gpu::denoise {

// Scores, softmax and values over one part of the keys for one head: block = 16 · head + part. A warp has a tile of 16
// keys and rows 0–7 or 8–15 for the scores, and 32 dimensions for the values.
TENDON_DEVICE void attention_stage(const Block& t, uint32_t first_chunk, const unsigned char* qkv,
                                   unsigned char* partial, unsigned char* partial_sums) {
  const int rows = t.args.rows;
  const int head = t.block >> 4;
  const int part = t.block & 15;
  const int keys = cached_slots(part, __ldg(t.args.cached_keys));
  const bool own = own_row(part) < rows;  // in the last slot
  const int tile = t.warp >> 1;
  const int first_row = 8 * (t.warp & 1);
  const bool own_scores = own && tile == kKeyTiles - 1;
  const bool own_value = own && t.quad == 3;  // this lane holds it

  uint4 values[kKeyTiles][2];
  const uint32_t at = t.chunk(first_chunk + tile);
#pragma unroll
  for (int k = 0; k < kKeyTiles; ++k) {
    const uint32_t from = t.chunk(first_chunk + kKeyTiles + k) + t.warp * 1024 + t.lane * 16;
    values[k][0] = load_shared_16(from);
    values[k][1] = load_shared_16(from + kFragmentBytes);
    t.release(first_chunk + kKeyTiles + k, 2);
  }
  // Eight columns of a row of q, k or v.
  const auto activation = [&](int column8, int row) {
    return qkv + (size_t{static_cast<unsigned>(column8)} * kRows + row) * 16;
  };
  uint4 keys_a[8];
#pragma unroll
  for (int step = 0; step < 8; ++step) keys_a[step] = load_shared_16(at + step * kFragmentBytes + t.lane * 16);
  // The queries, eight columns a lane from block 4p + quad of the head; the own key, eight columns a lane; what holds
  // this lane's two columns of each of its tiles of the own value.
  constexpr int kQueries = 8, kOwnKey = 8, kOwnValues = 9;
  uint4 b[11];
  await(
      b,
      [&](int i) {
        if (i < kQueries) return activation(head * 32 + 4 * i + t.quad, first_row + t.group);
        if (i == kOwnKey) return activation(kHeads * 32 + t.lane, own_row(part));
        return activation((kHeads + 1) * 32 + 2 * (2 * t.warp + i - kOwnValues) + (t.group >> 2), own_row(part));
      },
      [&](int i) { return i < kQueries   ? first_row + t.group < rows
                          : i == kOwnKey ? own_scores
                                         : own_value; });
  float sums[2][4] = {};  // even and odd k steps
#pragma unroll
  for (int step = 0; step < 16; ++step) {
    uint4 a = step < 8 ? keys_a[step] : load_shared_16(at + step * kFragmentBytes + t.lane * 16);
    if (own_scores) {  // the last of the tile's keys: two words of the lanes of group 7
      const int from = step / 2 * 4 + t.quad;
      const uint32_t low = __shfl_sync(~0U, (step & 1) != 0 ? b[kOwnKey].z : b[kOwnKey].x, from);
      const uint32_t high = __shfl_sync(~0U, (step & 1) != 0 ? b[kOwnKey].w : b[kOwnKey].y, from);
      a.y = t.group == 7 ? low : a.y;
      a.w = t.group == 7 ? high : a.w;
    }
    mma_step(sums[step & 1], a, b[step >> 1], step);
  }
  t.release(first_chunk + tile, 8);
#pragma unroll
  for (int z = 0; z < 2; ++z) {
    const uint4& unit = b[kOwnValues + z];
    const uint32_t low = (t.group & 1) != 0 ? unit.y : unit.x;
    const uint32_t high = (t.group & 1) != 0 ? unit.w : unit.z;
    const uint32_t pair = (t.group & 2) != 0 ? high : low;
    uint4& last = values[kKeyTiles - 1][z];
    last.z = own_value ? (last.z & 0xffffU) | pair << 16 : last.z;
    last.w = own_value ? (last.w & 0xffffU) | (pair & 0xffff0000U) : last.w;
  }

  // Probabilities relative to the tile's maximum. Masked scores are finite, so that a tile without keys gives finite
  // numbers; its maximum takes their weight away.
  constexpr float kMasked = -1e30F;
  const int leading = rows - t.args.horizon;  // the state's row sees itself only
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int row = first_row + 2 * t.quad + e;
    const bool sees_own = own && (row >= leading || own_row(part) < leading);
    float scores[2];
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const int key = tile * kTileKeys + t.group + 8 * high;
      const bool visible = key < keys || (sees_own && key == kPartKeys - 1);
      scores[high] = visible ? (sums[0][2 * high + e] + sums[1][2 * high + e]) * t.args.score_scale : kMasked;
    }
    float most = fmaxf(scores[0], scores[1]);
#pragma unroll
    for (int mask = 4; mask <= 16; mask *= 2) most = fmaxf(most, shuffle_xor(most, mask));
    float total = 0.0F;
#pragma unroll
    for (int high = 0; high < 2; ++high) {
      const float p = exp2f(scores[high] - most);
      total += p;
      store_shared_bf16(t.shared + SharedLayout::kProbabilities + row * SharedLayout::kProbabilityRow +
                            (tile * kTileKeys + t.group + 8 * high) * 2,
                        p);
    }
#pragma unroll
    for (int mask = 4; mask <= 16; mask *= 2) total += shuffle_xor(total, mask);
    if (t.group == 0) {
      store_shared_float(t.shared + SharedLayout::kMaxima + (row * kKeyTiles + tile) * 4, most);
      store_shared_float(t.shared + SharedLayout::kTotals + (row * kKeyTiles + tile) * 4, total);
    }
  }
  compute_sync();

  float out[2][2][4] = {};
  float inverse[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int row = 8 * j + t.group;
    const uint4 maxima = load_shared_16(t.shared + SharedLayout::kMaxima + row * kKeyTiles * 4);
    const uint4 totals = load_shared_16(t.shared + SharedLayout::kTotals + row * kKeyTiles * 4);
    const float m[4] = {__uint_as_float(maxima.x), __uint_as_float(maxima.y), __uint_as_float(maxima.z),
                        __uint_as_float(maxima.w)};
    const float s[4] = {__uint_as_float(totals.x), __uint_as_float(totals.y), __uint_as_float(totals.z),
                        __uint_as_float(totals.w)};
    const float most = fmaxf(fmaxf(m[0], m[1]), fmaxf(m[2], m[3]));
    float total = 0.0F;
#pragma unroll
    for (int k = 0; k < kKeyTiles; ++k) {
      const float weight = exp2f(m[k] - most);
      total += weight * s[k];
      const uint32_t pair = pack_bf16(weight, weight);
      const uint2 p = load_shared_8(t.shared + SharedLayout::kProbabilities + row * SharedLayout::kProbabilityRow +
                                    k * 32 + t.quad * 8);
#pragma unroll
      for (int z = 0; z < 2; ++z) {
        mma(out[z][j], values[k][z], multiply_bf16_pair(p.x, pair), multiply_bf16_pair(p.y, pair));
      }
    }
    inverse[j] = 1.0F / total;
    if (t.warp == 0 && t.quad == 0 && row < rows) {
      store_relaxed_8(partial_sums + (size_t{static_cast<unsigned>(part * kHeads + head)} * kRows + row) * 8,
                      __float_as_uint(most), __float_as_uint(total));
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = 8 * j + 2 * t.quad + e;
      const float factor = __shfl_sync(~0U, inverse[j], (2 * t.quad + e) * 4);
      if (row >= rows) continue;
#pragma unroll
      for (int z = 0; z < 2; ++z) {
        const int column8 = head * 32 + 2 * (2 * t.warp + z) + (t.group >> 2);
        store_relaxed_4(activation_word(partial, part * (kQWidth / 8) + column8, row, t.group & 3),
                        pack_bf16(out[z][j][e] * factor, out[z][j][2 + e] * factor));
      }
    }
  }
}

// Joins the 16 parts of 16 columns: four neighbouring lanes have four parts each of one row and eight columns.
TENDON_DEVICE void combine_stage(const Block& t, const unsigned char* partial, const unsigned char* partial_sums,
                                 unsigned char* attended) {
  const int quarter = t.thread & 3;
  const int row = (t.thread >> 2) % kMaxRows;
  const int column8 = 2 * t.block + (t.thread >> 2) / kMaxRows;
  if (t.warp >= 2 * kMaxRows * 4 / 32) return;
  const bool valid = row < t.args.rows;
  const auto values_of = [&](int c) {
    return partial + (size_t{static_cast<unsigned>((quarter * 4 + c) * (kQWidth / 8) + column8)} * kRows + row) * 16;
  };
  const auto sums_of = [&](int c) {
    return partial_sums +
           (size_t{static_cast<unsigned>((quarter * 4 + c) * kHeads + (column8 >> 5))} * kRows + row) * 8;
  };
  uint4 v[4];
  uint2 s[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    v[c] = valid ? load_relaxed_16(values_of(c)) : make_uint4(0, 0, 0, 0);
    s[c] = valid ? load_relaxed_8(sums_of(c)) : make_uint2(0, 0);
  }
  const auto empty = [](const uint2& x) { return x.x == kEmpty || x.y == kEmpty; };
  Patience patience;
  while (true) {
    bool missing = false;
#pragma unroll
    for (int c = 0; c < 4; ++c) missing |= has_empty(v[c]) || empty(s[c]);
    if (!missing) break;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (has_empty(v[c])) v[c] = load_relaxed_16(values_of(c));
      if (empty(s[c])) s[c] = load_relaxed_8(sums_of(c));
    }
    patience.lose();
  }
  float most = -1e30F;
#pragma unroll
  for (int c = 0; c < 4; ++c) most = fmaxf(most, __uint_as_float(s[c].x));
  most = fmaxf(most, shuffle_xor(most, 1));
  most = fmaxf(most, shuffle_xor(most, 2));
  float total = 0.0F;
  float sums[8] = {};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float weight = exp2f(__uint_as_float(s[c].x) - most) * __uint_as_float(s[c].y);
    total += weight;
    const uint32_t pairs[4] = {v[c].x, v[c].y, v[c].z, v[c].w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sums[2 * k] += weight * low_bf16(pairs[k]);
      sums[2 * k + 1] += weight * high_bf16(pairs[k]);
    }
  }
#pragma unroll
  for (int mask = 1; mask <= 2; mask *= 2) {
    total += shuffle_xor(total, mask);
#pragma unroll
    for (int k = 0; k < 8; ++k) sums[k] += shuffle_xor(sums[k], mask);
  }
  if (!valid) return;
  const float inverse = 1.0F / total;
  const float low = quarter == 0 ? sums[0] : quarter == 1 ? sums[2] : quarter == 2 ? sums[4] : sums[6];
  const float high = quarter == 0 ? sums[1] : quarter == 1 ? sums[3] : quarter == 2 ? sums[5] : sums[7];
  store_relaxed_4(activation_word(attended, column8, row, quarter), pack_bf16(low * inverse, high * inverse));
}

}  // namespace tendon::gpu::denoise
