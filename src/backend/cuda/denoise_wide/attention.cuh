// Attention over cached and own keys in the persistent denoise kernel for many rows: the parts, and their joining.
#pragma once

#include "backend/cuda/denoise_wide/block.cuh"

namespace tendon::gpu::denoise::wide {

// The own keys of the part go into their slots, the last ones of the chunks that hold cached keys and values.
TENDON_DEVICE void put_own(const Block& t, uint32_t first_chunk, int count, const uint4& v) {
  if (t.thread < kMostOwn * 32) {  // a key, eight dimensions
    const int i = t.thread >> 5;
    const int unit = t.thread & 31;
    if (i < count) {
      store_shared_16(t.chunk(first_chunk + (unit >> 3)) + ((unit & 7) * kPartKeys + kPartKeys - 1 - i) * kUnitBytes,
                      v);
    }
    return;
  }
  // Two dimensions of the four last values; the key next to the end is the first one.
  const uint32_t last = t.chunk(first_chunk + kKvChunks - 1) + kChunkBytes / 2 + kUnitBytes / 2;
  const uint32_t pairs[2][2] = {{v.x, v.y}, {v.z, v.w}};
#pragma unroll
  for (int d = 0; d < 2; ++d) {
    const uint32_t at = last + (2 * (t.thread - kMostOwn * 32) + d) * kUnitBytes;
#pragma unroll
    for (int i = 0; i < kMostOwn; ++i) {
      const uint32_t pair = pairs[d][1 - i / 2];
      const auto bits = static_cast<uint16_t>(i % 2 == 0 ? pair >> 16 : pair);
      if (i < count) asm volatile("st.shared.u16 [%0], %1;" ::"r"(at + (3 - i) * 2), "h"(bits) : "memory");
    }
  }
}

// Scores, softmax and values of one part of the keys for one head: block = 16 · head + part. Both warpgroups make all
// scores; each has half of the dimensions of the values.
TENDON_DEVICE void attention_stage(const Block& t, uint32_t first_chunk, const unsigned char* qk,
                                   const unsigned char* v_in, unsigned char* partial, unsigned char* partial_sums) {
  const int head = t.block / kParts;
  const int part = t.block % kParts;
  const int own = own_keys(part, t.args.rows);
  static_assert(kPieceColumns == kHeadDim);
  constexpr int kUnits = kPieceUnits;
  uint4 v[kUnits + 1];  // the last one: of the own keys or values
  const bool has_key = t.thread < kMostOwn * 32;
  const unsigned char* const last =
      has_key ? activation(qk, kHeads * 32 + (t.thread & 31), min(own_row(part, t.thread >> 5), kRows - 1))
              : v_in + (part * kHeadDim / 2 + t.thread - kMostOwn * 32) * kUnitBytes;
  await(
      v, [&](int i) { return i < kUnits ? qk + (head * 32 * kRows + i * kThreads + t.thread) * kUnitBytes : last; },
      [&](int i) { return i < kUnits || !has_key || (t.thread >> 5) < own; });
  t.put_piece(v, t.activations());
  put_own(t, first_chunk, own, v[kUnits]);
  shared_ready();

  float scores[32] = {};
  uint32_t chunks[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) chunks[c] = t.chunk(first_chunk + c);
  __syncwarp();  // lanes leave the waits one by one
  wgmma_begin();
#pragma unroll
  for (int c = 0; c < 4; ++c) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      Wgmma<8>::run(scores, unit_rows(t.activations() + (c * 4 + s) * 2 * kActivationStride, kActivationStride),
                    unit_rows(chunks[c] + s * 2 * kPartKeys * kUnitBytes, kPartKeys * kUnitBytes), 1);
    }
  }
  wgmma_commit();
  const int cached = cached_slots(part, __ldg(t.args.cached_keys));
  const int leading = t.args.rows - t.args.horizon;  // these rows see themselves only
  const int own_of_leading = own_keys(part, leading);
  wgmma_wait<0>();
  hold(scores);
  t.release(first_chunk, kKeyChunks);
  compute_sync();  // nobody reads the queries any more

  // Masked scores are finite, so that a part without keys gives finite numbers; its maximum takes their weight away.
  constexpr float kMasked = -1e30F;
  float most[2];
  float total[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int first_own = kPartKeys - (t.product_row(h) < leading ? own_of_leading : own);
    most[h] = kMasked;
#pragma unroll
    for (int g = 0; g < 8; ++g) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = 8 * g + 2 * t.quad + e;
        float& score = scores[4 * g + 2 * h + e];
        score = key < cached || key >= first_own ? score * t.args.score_scale : kMasked;
        most[h] = fmaxf(most[h], score);
      }
    }
    most[h] = fmaxf(most[h], shuffle_xor(most[h], 1));
    most[h] = fmaxf(most[h], shuffle_xor(most[h], 2));
    total[h] = 0.0F;
#pragma unroll
    for (int g = 0; g < 8; ++g) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = scores[4 * g + 2 * h + e];
        score = exp2f(score - most[h]);
        total[h] += score;
      }
    }
    total[h] += shuffle_xor(total[h], 1);
    total[h] += shuffle_xor(total[h], 2);
  }
  float out[64] = {};
  uint32_t p[4][4];
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const int at = 4 * (2 * s + w / 2) + 2 * (w % 2);
      p[s][w] = pack_bf16(scores[at], scores[at + 1]);
    }
  }
#pragma unroll
  for (int s = 0; s < 4; ++s) chunks[s] = t.chunk(first_chunk + kKeyChunks + s);
  __syncwarp();  // lanes leave the waits one by one
  wgmma_begin();
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    WgmmaRegisters<kHalfDim / 8, false>::run(
        out, p[s], unit_rows(chunks[s] + t.side * (kHalfDim * kUnitBytes), kHeadDim * kUnitBytes), 1);
  }
  wgmma_commit();
  wgmma_wait<0>();
  hold(out);
  t.release(first_chunk + kKeyChunks, kKvChunks - kKeyChunks);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = t.product_row(h);
    if (row >= kRows) continue;
    const float inverse = 1.0F / total[h];
#pragma unroll
    for (int g = 0; g < 16; ++g) {
      store_relaxed_4(activation(partial, part * (kQWidth / 8) + head * 32 + t.side * 16 + g, row) + t.quad * 4,
                      pack_bf16(out[4 * g + 2 * h] * inverse, out[4 * g + 2 * h + 1] * inverse));
    }
    if (t.side == 0 && t.quad == 0) {
      store_relaxed_8(partial_sums + ((head * kRows + row) * kParts + part) * 8, __float_as_uint(most[h]),
                      __float_as_uint(total[h]));
    }
  }
}

// Joins the 16 parts of 16 columns: lanes 16 apart have eight parts each of one row and eight columns.
TENDON_DEVICE void combine_stage(const Block& t, unsigned char* partial, const unsigned char* partial_sums,
                                 unsigned char* attended) {
  constexpr int kMine = kParts / 2;
  const int item = t.warp() * 16 + (t.lane & 15);
  const int half = t.lane >> 4;
  const bool valid = item < 2 * kRows;
  const int column8 = 2 * t.block + (item >= kRows ? 1 : 0);
  const int row = item >= kRows ? item - kRows : item;
  const auto values_of = [&](int i) { return activation(partial, (half * kMine + i) * (kQWidth / 8) + column8, row); };
  const unsigned char* const sums_from = partial_sums + ((column8 / 32 * kRows + row) * kParts + half * kMine) * 8;
  uint4 v[kMine + kMine / 2];  // then the sums, of two parts each
  await(
      v,
      [&](int i) {
        return i < kMine ? static_cast<const unsigned char*>(values_of(i)) : sums_from + (i - kMine) * kUnitBytes;
      },
      [&](int) { return valid; });
  float most = -1e30F;
#pragma unroll
  for (int i = 0; i < kMine / 2; ++i) {
    most = fmaxf(most, fmaxf(__uint_as_float(v[kMine + i].x), __uint_as_float(v[kMine + i].z)));
  }
  most = fmaxf(most, shuffle_xor(most, 16));
  float total = 0.0F;
  float sums[8] = {};
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const uint4& pair = v[kMine + i / 2];
    const float weight = i % 2 == 0 ? exp2f(__uint_as_float(pair.x) - most) * __uint_as_float(pair.y)
                                    : exp2f(__uint_as_float(pair.z) - most) * __uint_as_float(pair.w);
    total += weight;
    const uint32_t words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sums[2 * k] += weight * low_bf16(words[k]);
      sums[2 * k + 1] += weight * high_bf16(words[k]);
    }
    if (valid) store_relaxed_16(values_of(i), make_uint4(kEmpty, kEmpty, kEmpty, kEmpty));
  }
  total += shuffle_xor(total, 16);
#pragma unroll
  for (int k = 0; k < 8; ++k) sums[k] += shuffle_xor(sums[k], 16);
  if (!valid) return;
  const float inverse = 1.0F / total;
  const uint32_t low =
      half == 0 ? pack_bf16(sums[0] * inverse, sums[1] * inverse) : pack_bf16(sums[4] * inverse, sums[5] * inverse);
  const uint32_t high =
      half == 0 ? pack_bf16(sums[2] * inverse, sums[3] * inverse) : pack_bf16(sums[6] * inverse, sums[7] * inverse);
  store_relaxed_8(activation(attended, column8, row) + half * 8, low, high);
}

}  // namespace tendon::gpu::denoise::wide
