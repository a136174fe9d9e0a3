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
  const int keys = cached_slots(part, t.cached_keys);
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
    return qkv + static_cast<uint32_t>((column8 * kRows + row) * 16);
  };
  uint4 keys_a[8];
#pragma unroll
  for (int step = 0; step < 8; ++step) keys_a[step] = load_shared_16(at + step * kFragmentBytes + t.lane * 16);
  // The queries, eight columns a lane from block 4p + quad of the head; the own key, eight columns a lane; what holds
  // this lane's column of each of its tiles of the own value.
  constexpr int kQueries = 8, kOwnKey = 8, kOwnValue = 9;
  const int query = min(first_row + t.group, rows - 1);
  const int own_at = min(own_row(part), rows - 1);
  uint4 b[10];
  await(b, [&](int i) {
    if (i < kQueries) return activation(head * 32 + t.quad, query) + i * (4 * kRows * 16);
    if (i == kOwnKey) return activation(kHeads * 32 + t.lane, own_at);
    return activation((kHeads + 1) * 32 + 4 * t.warp + (t.group >> 1), own_at);
  });
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
  if (own_value) {  // one of the two columns of each pair, in the upper half of the last keys' words
    const auto put = [&](uint32_t& word, uint32_t pair) {
      word = (word & 0xffffU) | ((t.group & 1) != 0 ? pair & 0xffff0000U : pair << 16);
    };
    put(values[kKeyTiles - 1][0].y, b[kOwnValue].x);
    put(values[kKeyTiles - 1][0].w, b[kOwnValue].y);
    put(values[kKeyTiles - 1][1].y, b[kOwnValue].z);
    put(values[kKeyTiles - 1][1].w, b[kOwnValue].w);
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
      const float p = power_of_two(scores[high] - most);
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

  // Rows group and group + 8 are the mma's rows, four tiles of eight dimensions its columns.
  uint2 p[2][kKeyTiles];
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
      const float weight = power_of_two(m[k] - most);
      total += weight * s[k];
      const uint32_t pair = pack_bf16(weight, weight);
      p[j][k] = load_shared_8(t.shared + SharedLayout::kProbabilities + row * SharedLayout::kProbabilityRow + k * 32 +
                              t.quad * 8);
      p[j][k] = make_uint2(multiply_bf16_pair(p[j][k].x, pair), multiply_bf16_pair(p[j][k].y, pair));
    }
    inverse[j] = fast_divide(1.0F, total);
    if (t.warp == 0 && t.quad == 0 && row < rows) {
      store_relaxed_8(partial_sums + (size_t{static_cast<unsigned>(part * kHeads + head)} * kRows + row) * 8,
                      __float_as_uint(most), __float_as_uint(total));
    }
  }
  float out[4][4] = {};
#pragma unroll
  for (int k = 0; k < kKeyTiles; ++k) {
    const uint4 a = make_uint4(p[0][k].x, p[1][k].x, p[0][k].y, p[1][k].y);
    mma(out[0], a, values[k][0].x, values[k][0].y);
    mma(out[1], a, values[k][0].z, values[k][0].w);
    mma(out[2], a, values[k][1].x, values[k][1].y);
    mma(out[3], a, values[k][1].z, values[k][1].w);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int row = 8 * j + t.group;
    if (row >= rows) continue;
    const auto pair = [&](int tile) {
      return pack_bf16(out[tile][2 * j] * inverse[j], out[tile][2 * j + 1] * inverse[j]);
    };
    store_relaxed_16(activation_word(partial, part * (kQWidth / 8) + head * 32 + 4 * t.warp + t.quad, row, 0),
                     make_uint4(pair(0), pair(1), pair(2), pair(3)));
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
  const int from_row = min(row, t.args.rows - 1);
  const auto values_of = [&](int c) {
    return partial + static_cast<uint32_t>((quarter * 4 * (kQWidth / 8) + column8) * kRows + from_row) * 16 +
           c * (kQWidth / 8 * kRows * 16);
  };
  const auto sums_of = [&](int c) {
    return partial_sums + static_cast<uint32_t>((quarter * 4 * kHeads + (column8 >> 5)) * kRows + from_row) * 8 +
           c * (kHeads * kRows * 8);
  };
  uint4 v[4];
  await(v, values_of);
  uint2 s[4];
  const auto empty = [](const uint2& x) { return x.x == kEmpty || x.y == kEmpty; };
  Patience patience;
  do {
#pragma unroll
    for (int c = 0; c < 4; ++c) s[c] = load_relaxed_8(sums_of(c));
    patience.lose();
  } while (empty(s[0]) || empty(s[1]) || empty(s[2]) || empty(s[3]));
  __syncwarp();
  float most = -1e30F;
#pragma unroll
  for (int c = 0; c < 4; ++c) most = fmaxf(most, __uint_as_float(s[c].x));
  most = fmaxf(most, shuffle_xor(most, 1));
  most = fmaxf(most, shuffle_xor(most, 2));
  float total = 0.0F;
  float sums[8] = {};
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const float weight = power_of_two(__uint_as_float(s[c].x) - most) * __uint_as_float(s[c].y);
    total += weight;
    const uint32_t pairs[4] = {v[c].x, v[c].y, v[c].z, v[c].w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sums[2 * k] += weight * low_bf16(pairs[k]);
      sums[2 * k + 1] += weight * high_bf16(pairs[k]);
    }
  }
  total += shuffle_xor(total, 1);
  total += shuffle_xor(total, 2);
  // Neighbours share out the columns: of pairs 0–3 a lane keeps 2 · (quarter & 1) and the one behind, then one of
  // these.
  const bool odd = (quarter & 1) != 0;
  float four[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) four[k] = (odd ? sums[4 + k] : sums[k]) + shuffle_xor(odd ? sums[k] : sums[4 + k], 1);
  const bool upper = (quarter & 2) != 0;
  const float low = (upper ? four[2] : four[0]) + shuffle_xor(upper ? four[0] : four[2], 2);
  const float high = (upper ? four[3] : four[1]) + shuffle_xor(upper ? four[1] : four[3], 2);
  if (!valid) return;
  const float inverse = fast_divide(1.0F, total);
  store_relaxed_4(activation_word(attended, column8, row, 2 * (quarter & 1) + (quarter >> 1)),
                  pack_bf16(low * inverse, high * inverse));
}

}  // namespace tendon::gpu::denoise
