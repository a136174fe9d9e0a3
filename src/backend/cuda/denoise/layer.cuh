// The six stages of an expert layer in the persistent denoise kernel.
#pragma once

#include "backend/cuda/denoise/block.cuh"

namespace tendon::gpu::denoise {

// Norm, q, k, v and the rotation. Block b makes units 5b..5b+4 of four columns (layout.h). `shift` (kQkvWidth) or null.
TENDON_DEVICE void qkv_stage(const Block& t, uint32_t first_chunk, const unsigned char* x, const float* shift,
                             unsigned char* qk, unsigned char* v_out) {
  barrier_wait(t.shared + SharedLayout::kGainBarriers, t.layer_parity & 1);
  const int rows = t.args.rows;
  const int item = t.warp * 8 + (t.lane & 7);
  const int member = item & 3;
  const int rows4 = (item >> 2) % kQuads;
  const int unit_of_block = (item >> 2) / kQuads;
  const int row = rows4 * 4 + (t.lane >> 3);
  const int unit = t.block * kQkvChunks + unit_of_block;
  const int head = unit >> 6;  // 0–7 of q, then k, then v
  const int dim = 2 * (unit & 63);
  const bool is_v = head > kHeads;
  float cosine = 1.0F;
  float sine = 0.0F;
  if (unit_of_block < 5 && !is_v && row < rows) {
    const float* const angles = t.args.rope + int64_t{__ldg(t.args.positions + row)} * kHeadDim + dim + (member & 1);
    cosine = __ldg(angles);
    sine = __ldg(angles + kHalfDim);
  }
  float added = 0.0F;
  if (shift != nullptr && unit_of_block < 5) {
    added = __ldg(shift + head * kHeadDim + dim + (member & 1) + (member >> 1) * kHalfDim);
  }

  uint4 b[8];
  uint4 weights[8];
  uint2 last_unit[8];
  float sums[2][4] = {};
  float last_sums[2][4] = {};
  const uint32_t chunk = first_chunk + (t.warp >> 1);
  const uint32_t at = t.chunk(chunk) + (t.warp & 1) * 4096;
  const uint32_t last_at = t.chunk(first_chunk + 4) + t.warp * 1024;
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    weights[step] = load_shared_16(at + step * kFragmentBytes + t.lane * 16);
    last_unit[step] = make_uint2(0, 0);
    if (t.group < 4) last_unit[step] = load_shared_8(last_at + step * 128 + t.lane * 8);
  }
  t.release(chunk, 8);
  t.release(first_chunk + 4, 2);
  t.load_rows<4>(b, x, t.warp * 16);
  t.apply_gain<4>(b, t.warp * 16, t.shared + SharedLayout::kGains);
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint4 last = make_uint4(last_unit[step].x, 0, last_unit[step].y, 0);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      mma_step(sums[j], weights[step], b, step, j);
      mma_step(last_sums[j], last, b, step, j);
    }
  }
  constexpr int kWarpStride = 20 * kMaxRows * 4;
  const uint32_t base = t.shared + SharedLayout::kSumsWide;
  __syncwarp();
  t.put_sums(base + t.warp * kWarpStride, 0, sums, true);
  if (t.group < 4) t.put_sums(base + t.warp * kWarpStride, 16, last_sums, false);
  compute_sync();

  float v = t.sum_of_warps(base, kWarpStride, min(unit_of_block, 4) * 4 + member, rows4) * t.inverse_norm(row) + added;
  const float partner = shuffle_xor(v, 2);
  if (!is_v) v = member < 2 ? v * cosine - partner * sine : v * cosine + partner * sine;
  if (row >= rows) v = 0.0F;
  const float next_column = shuffle_xor(v, 1);
  const float next_row = shuffle_xor(v, 8);
  if (unit_of_block >= 5) return;
  const int d = dim + (member >> 1) * kHalfDim + (member & 1);
  if (!is_v) {
    if (row < rows && (member & 1) == 0) {
      store_relaxed_4(activation_word(qk, head * 32 + (d >> 3), row, (d & 7) >> 1), pack_bf16(v, next_column));
    }
  } else if ((row & 1) == 0 && row < (rows + 3) / 4 * 4) {
    // As mma A operand, two rows a word: [tile of 16 dimensions][lane][word].
    const int in_tile = d & 15;
    const int lane = (in_tile >> 1) * 4 + (row >> 2);
    const int word = (row & 3) / 2 * 2 + (in_tile & 1);
    store_relaxed_4(v_out + ((d >> 4) * 32 + lane) * 16 + word * 4, pack_bf16(v, next_row));
  }
}

// Scores, softmax and values over one part of the keys for one head: block = 16 · head + part. The last part also has
// the rows' own keys, in its last tile.
TENDON_DEVICE void attention_stage(const Block& t, uint32_t first_chunk, const unsigned char* qk,
                                   const unsigned char* v_in, unsigned char* partial, unsigned char* partial_sums) {
  const int rows = t.args.rows;
  const int head = t.block >> 4;
  const int part = t.block & 15;
  const int cached = __ldg(t.args.cached_keys);
  const int keys = min(max(cached - part * t.args.keys_of_part, 0), t.args.keys_of_part);
  const bool own = part == kParts - 1;
  const int own_tile = own ? kKeyTiles - 1 : kKeyTiles;
  const int own_key = own_tile * kTileKeys;
  const int tile = t.warp >> 1;       // of keys, for the scores
  const int depth_half = t.warp & 1;  // of the head's dimensions

  uint4 b[8];
  uint4 keys_a[8];
  uint4 values[kKeyTiles][2];
  uint4 own_keys[8];
  uint4 own_values[2];
  const uint32_t at = t.chunk(first_chunk + tile) + depth_half * 4096;
#pragma unroll
  for (int step = 0; step < 8; ++step) keys_a[step] = load_shared_16(at + step * kFragmentBytes + t.lane * 16);
  t.release(first_chunk + tile, 8);
#pragma unroll
  for (int k = 0; k < kKeyTiles; ++k) {
    const uint32_t from = t.chunk(first_chunk + kKeyTiles + k) + t.warp * 1024 + t.lane * 16;
    values[k][0] = load_shared_16(from);
    values[k][1] = load_shared_16(from + kFragmentBytes);
    t.release(first_chunk + kKeyTiles + k, 2);
  }
  const auto query = [&](int i) {
    return qk + (size_t{static_cast<unsigned>(head * 32 + depth_half * 16 + 4 * (i >> 1) + t.quad)} * kRows +
                 8 * (i & 1) + t.group) *
                    16;
  };
  if (own) {
    uint4 all[18];
    await(
        all,
        [&](int i) -> const unsigned char* {
          if (i < 8) return query(i);
          if (i < 16) {
            return qk +
                   (size_t{static_cast<unsigned>(kHeads * 32 + depth_half * 16 + 4 * ((i - 8) >> 1) + t.quad)} * kRows +
                    t.group + 8 * (i & 1)) *
                       16;
          }
          return v_in + ((2 * t.warp + i - 16) * 32 + t.lane) * 16;
        },
        [&](int i) {
          if (i < 8) return 8 * (i & 1) + t.group < rows;
          if (i < 16) return tile >= own_tile && t.group + 8 * (i & 1) < rows;
          return 4 * t.quad < rows;
        });
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      b[i] = all[i];
      own_keys[i] = all[8 + i];
    }
    own_values[0] = all[16];
    own_values[1] = all[17];
  } else {
    await(b, query, [&](int i) { return 8 * (i & 1) + t.group < rows; });
#pragma unroll
    for (int i = 0; i < 8; ++i) own_keys[i] = make_uint4(0, 0, 0, 0);
    own_values[0] = own_values[1] = make_uint4(0, 0, 0, 0);
  }

  float scores[2][4] = {};
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    uint4 a = keys_a[step];
    if (tile >= own_tile) {
      const uint4 low = own_keys[(step >> 1) * 2];
      const uint4 high = own_keys[(step >> 1) * 2 + 1];
      a = (step & 1) != 0 ? make_uint4(low.z, high.z, low.w, high.w) : make_uint4(low.x, high.x, low.y, high.y);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) mma_step(scores[j], a, b, step, j);
  }
  constexpr int kScoreRow = SharedLayout::kScoreRow;
  const uint32_t scores_at = t.shared + SharedLayout::kSumsNarrow;
#pragma unroll
  for (int high = 0; high < 2; ++high) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int key = depth_half * kPartKeys + tile * kTileKeys + t.group + 8 * high;
      store_shared_floats(scores_at + (key * kScoreRow + 8 * j + 2 * t.quad) * 4, scores[j][2 * high],
                          scores[j][2 * high + 1]);
    }
  }
  compute_sync();

  // A lane has keys `lane` and `lane + 32` of the row. Masked scores are finite, so that a part without keys gives
  // finite numbers of no weight.
  constexpr float kMasked = -1e30F;
  const int leading = rows - t.args.horizon;  // the state's row sees itself only
  for (int row = t.warp; row < rows; row += kWarps) {
    float score[2];
    float most = kMasked;
    const int own_end = own_key + (row < leading ? leading : rows);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int key = t.lane + 32 * k;
      const float x = load_shared_float(scores_at + (key * kScoreRow + row) * 4) +
                      load_shared_float(scores_at + ((kPartKeys + key) * kScoreRow + row) * 4);
      const bool visible = key < min(keys, own_key) || (own && key >= own_key && key < own_end);
      score[k] = visible ? x * t.args.score_scale : kMasked;
      most = fmaxf(most, score[k]);
    }
    most = wave_max(most);
    float sum = 0.0F;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float p = exp2f(score[k] - most);
      sum += p;
      store_shared_bf16(
          t.shared + SharedLayout::kProbabilities + row * SharedLayout::kProbabilityRow + (t.lane + 32 * k) * 2, p);
    }
    sum = wave_sum(sum);
    if (t.lane == 0) {
      store_shared_float(t.shared + SharedLayout::kInverse + row * 4, 1.0F / sum);
      store_relaxed_8(partial_sums + (size_t{static_cast<unsigned>(part * kHeads + head)} * kRows + row) * 8,
                      __float_as_uint(most), __float_as_uint(sum));
    }
  }
  compute_sync();

  float out[2][2][4] = {};
#pragma unroll
  for (int k = 0; k < kKeyTiles; ++k) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint2 p = make_uint2(0, 0);
      if (8 * j + t.group < rows) {
        p = load_shared_8(t.shared + SharedLayout::kProbabilities + (8 * j + t.group) * SharedLayout::kProbabilityRow +
                          k * 32 + t.quad * 8);
      }
#pragma unroll
      for (int z = 0; z < 2; ++z) mma(out[z][j], k >= own_tile ? own_values[z] : values[k][z], p.x, p.y);
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = 8 * j + 2 * t.quad + e;
      if (row >= rows) continue;
      const float inverse = load_shared_float(t.shared + SharedLayout::kInverse + row * 4);
#pragma unroll
      for (int z = 0; z < 2; ++z) {
        const int column8 = head * 32 + 2 * (2 * t.warp + z) + (t.group >> 2);
        store_relaxed_4(activation_word(partial, part * (kQWidth / 8) + column8, row, t.group & 3),
                        pack_bf16(out[z][j][e] * inverse, out[z][j][2 + e] * inverse));
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

// residual += in · wᵀ (times `gate`, if any) for o (kDown = false) and down. The blocks of a pair have half of the
// depth each and send each other the sums of the other's columns.
template <bool kDown>
TENDON_DEVICE void output_stage(Block& t, uint32_t first_chunk, const unsigned char* in, const float* gate,
                                unsigned char* out) {
  constexpr int kPairs = kDown ? 8 : 4;  // of k steps, a warp
  constexpr int kSteps = 2 * kPairs;
  constexpr int kWarpsOfChunk = kFragments / kSteps;
  const int rows = t.args.rows;
  const uint32_t barrier = t.shared + SharedLayout::kBarriers + (kDown ? 8 : 0);
  if (t.thread == 0) barrier_expect(barrier, 8 * rows * 4);
  const Block::Own own = t.own();
  float factor = 1.0F;
  if (gate != nullptr && own.mine) factor = __ldg(gate + t.block / 2 * 16 + own.column);

  uint4 b[kPairs * 2];
  uint4 weights[kSteps];
  float sums[2][2][4] = {};  // even and odd k steps
  const uint32_t chunk = first_chunk + t.warp / kWarpsOfChunk;
  const uint32_t at = t.chunk(chunk) + t.warp % kWarpsOfChunk * kSteps * kFragmentBytes;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    weights[step] = load_shared_16(at + step * kFragmentBytes + t.lane * 16);
  }
  t.release(chunk, kSteps);
  t.load_rows<kPairs>(b, in, (kDown ? 256 : 128) * t.half + t.warp * kPairs * 4);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int j = 0; j < 2; ++j) mma_step(sums[step & 1][j], weights[step], b, step, j);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[0][j][e] += sums[1][j][e];
  }
  constexpr int kWarpStride = 16 * kMaxRows * 4;
  const uint32_t base = t.shared + SharedLayout::kSumsNarrow;
  __syncwarp();
  t.put_sums(base + t.warp * kWarpStride, 0, sums[0], true);
  compute_sync();

  if (t.warp < 16 * kQuads / 8) {
    float v = t.sum_of_warps(base, kWarpStride, own.column, own.rows4);
    const uint32_t received =
        t.shared + SharedLayout::kReceived + ((kDown ? 8 : 0) + (own.column & 7)) * (kMaxRows * 4) + own.row * 4;
    if (own.mine) {
      barrier_wait(barrier, t.layer_parity & 1);
      v = t.residual + (v + load_shared_float(received)) * factor;
    } else if (own.row < rows) {
      send(in_block(received, t.half ^ 1), v, in_block(barrier, t.half ^ 1));
    }
    const bool odd = (own.column & 1) != 0;
    const float other = shuffle_xor(v, 1);
    const uint32_t packed = odd ? pack_bf16(other, v) : pack_bf16(v, other);
    if (own.mine) {
      t.residual = odd ? high_bf16(packed) : low_bf16(packed);
      if (own.row < rows && !odd)
        store_relaxed_4(activation_word(out, t.block, own.row, (own.column & 7) >> 1), packed);
    }
  }
}

// Norm, gate and up, GELU(gate) · up: block b makes hidden columns 32b..32b+31. `shift` (2 · kMlp) or null.
TENDON_DEVICE void gate_up_stage(const Block& t, uint32_t first_chunk, const unsigned char* x, const float* shift,
                                 unsigned char* hidden) {
  barrier_wait(t.shared + SharedLayout::kGainBarriers + 8, t.layer_parity & 1);
  uint4 b[8];
  uint4 weights[16];
  float sums[4][2][4] = {};
  const uint32_t chunk = first_chunk + 2 * t.warp;
  const uint32_t at = t.chunk(chunk);
  const uint32_t second_at = t.chunk(chunk + 1);
#pragma unroll
  for (int i = 0; i < 16; ++i) weights[i] = load_shared_16(at + i * kFragmentBytes + t.lane * 16);
  t.release(chunk, 16);
  t.load_rows<4>(b, x, t.warp * 16);
  t.apply_gain<4>(b, t.warp * 16, t.shared + SharedLayout::kGains + kWidth * 2);
#pragma unroll
  for (int step = 0; step < 8; ++step) {
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const int fragment = (step & 3) * 4 + tile;
      const uint4 a =
          step < 4 ? weights[fragment] : load_shared_16(second_at + fragment * kFragmentBytes + t.lane * 16);
#pragma unroll
      for (int j = 0; j < 2; ++j) mma_step(sums[tile][j], a, b, step, j);
    }
  }
  t.release(chunk + 1, 16);
  constexpr int kWarpStride = 64 * kMaxRows * 4;
  const uint32_t base = t.shared + SharedLayout::kSumsWide;
  __syncwarp();
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) t.put_sums(base + t.warp * kWarpStride, tile * 16, sums[tile], true);
  compute_sync();

  for (int group = t.warp; group < 32 * kQuads / 8; group += kWarps) {
    const int item = group * 8 + (t.lane & 7);
    const int rows4 = (item >> 1) % kQuads;
    const int column = 2 * ((item >> 1) / kQuads) + (item & 1);
    const int row = rows4 * 4 + (t.lane >> 3);
    const float inverse = t.inverse_norm(row);
    float gate = t.sum_of_warps(base, kWarpStride, column, rows4) * inverse;
    float up = t.sum_of_warps(base, kWarpStride, 32 + column, rows4) * inverse;
    if (shift != nullptr) {
      gate += __ldg(shift + t.block * 32 + column);
      up += __ldg(shift + kMlp + t.block * 32 + column);
    }
    const float v = gelu_tanh(gate) * up;
    const float other = shuffle_xor(v, 1);
    if (row < t.args.rows && (item & 1) == 0) {
      store_relaxed_4(activation_word(hidden, t.block * 4 + (column >> 3), row, (column & 7) >> 1),
                      pack_bf16(v, other));
    }
  }
}

}  // namespace tendon::gpu::denoise
