// From a warpgroup's sums to what is stored: parts of K added up, bias, activation, residual; GELU(gate) · up;
// rotation; codes in place of bf16.
#pragma once

#include "backend/cuda/hopper/ring.cuh"
#include "backend/gpu/codes.cuh"

namespace tendon::gpu::hopper {

// Sends the sums of other parts' tokens to them.
template <class T, int kPart>
TENDON_DEVICE void send_parts(const float (&sums)[T::kBlocks][4 * T::kGroups], const Ring<T>& ring,
                              const Place<T>& place) {
  if constexpr (kPart < T::kParts) {
    if (place.part != kPart) {
      const int slot = place.part < kPart ? place.part : place.part - 1;
      const int rank = (kPart * T::kClusterWeights + place.weights) * T::kClusterTokens + place.tokens;
      const uint32_t to = in_block(ring.part_sums(slot), rank);
      const uint32_t barrier = in_block(ring.sent(), rank);
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) {
#pragma unroll
        for (int g = T::template kBegin<kPart>; g < T::template kBegin<kPart + 1>; ++g) {
          const int index = block * T::kMostGroups + g - T::template kBegin<kPart>;
          send_four(to + index * T::kMultipliers * 16, barrier, &sums[block][4 * g]);
        }
      }
    }
    send_parts<T, kPart + 1>(sums, ring, place);
  }
}

// Eight tokens × two rows of a thread: its own sums and, in the order of K, those of the other parts.
template <class T, int kPart, int kGroup>
TENDON_DEVICE void all_parts(const float* own, const Ring<T>& ring, int block, float (&y)[4]) {
#pragma unroll
  for (int part = 0; part < T::kParts; ++part) {
    float next[4];
    if (part == kPart) {
#pragma unroll
      for (int i = 0; i < 4; ++i) next[i] = own[i];
    } else {
      const int index = block * T::kMostGroups + kGroup - T::template kBegin<kPart>;
      load_four(ring.part_sums(part < kPart ? part : part - 1) + index * T::kMultipliers * 16, next);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = part == 0 ? next[i] : y[i] + next[i];
  }
}

// Where a warpgroup turns its sums: tokens × 16-byte pieces of 64 columns, swizzled so that neither the rows that are
// written nor the pieces that are read collide. It is the 128-byte swizzle of TMA, by which boxes come and go there.
constexpr int kPieces = 8;
constexpr int kTurnTokens = 8 * kChunkGroups;
constexpr int kTurns = kTurnTokens * kPieces / 128;  // pieces of a thread
constexpr int kTokenStep = 128 / kPieces;            // between them
TENDON_DEVICE uint32_t turned(int token, int piece) {
  return static_cast<uint32_t>((token * kPieces + (piece ^ (token & 7))) * 16);
}

// Rounds groups kGroup and kGroup + 1 (up to kEnd) of a block's sums and turns them to where the first is the kLocal-th
// of eight tokens; `adds`: to what lies there.
template <class T, int kPart, int kGroup, int kEnd, int kLocal>
TENDON_DEVICE void turn_pair(const float (&sums)[T::kBlocks][4 * T::kGroups], const Ring<T>& ring, uint32_t buffer,
                             int block, const float (&bias)[T::kBlocks][2], bool adds) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int matrix = lane() / 8;
  const uint32_t to = buffer + turned((kLocal + matrix / 2) * 8 + lane() % 8, warp * 2 + matrix % 2);
  constexpr int kPairs = kGroup + 1 < kEnd ? 4 : 2;
  uint32_t pairs[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs / 2; ++i) {
    constexpr int kLast = kGroup + kPairs / 2 - 1;
    float y[4];
    if (i == 0) {
      all_parts<T, kPart, kGroup>(&sums[block][4 * kGroup], ring, block, y);
    } else {
      all_parts<T, kPart, kLast>(&sums[block][4 * kLast], ring, block, y);
    }
    hold(y);  // what follows is not computed for all chunks in front of the test for one
#pragma unroll
    for (int j = 0; j < 4; ++j) y[j] += bias[block][j / 2];
    if constexpr (T::kTail == Tail::kGelu) {
#pragma unroll
      for (int j = 0; j < 4; ++j) y[j] = gelu_tanh(y[j]);
    }
    pairs[2 * i] = pack_bf16(y[0], y[1]);
    pairs[2 * i + 1] = pack_bf16(y[2], y[3]);
  }
  if constexpr (T::kTail == Tail::kPlain) {
    if (adds) {
      uint32_t residual[kPairs];
      load_transposed(to, residual);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        pairs[i] = pack_bf16(low_bf16(pairs[i]) + low_bf16(residual[i]), high_bf16(pairs[i]) + high_bf16(residual[i]));
      }
    }
  }
  if constexpr (kPairs == 4) {
    store_transposed(to, pairs[0], pairs[1], pairs[2], pairs[3]);
  } else {
    store_transposed(to, pairs[0], pairs[1]);
  }
}

// Turns chunk number `chunk` of part number `part`: tests until it finds the code for it, for registers have no index.
template <class T, int kPart, int kChunk>
TENDON_DEVICE void turn_chunk(const float (&sums)[T::kBlocks][4 * T::kGroups], const Ring<T>& ring, uint32_t buffer,
                              int part, int chunk, int pass, const float (&bias)[T::kBlocks][2]) {
  constexpr int kFirst = T::template kBegin<kPart> + kChunk * kChunkGroups;
  constexpr int kEnd = T::template kBegin<kPart + 1>;
  if constexpr (kPart == T::kParts) {
    return;
  } else if constexpr (kFirst >= kEnd) {
    turn_chunk<T, kPart + 1, 0>(sums, ring, buffer, part, chunk, pass, bias);
  } else {
    if (part == kPart && chunk == kChunk) {
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) {
        if (block == pass) {
          turn_pair<T, kPart, kFirst, kEnd, 0>(sums, ring, buffer, block, bias, false);
          if constexpr (kFirst + 2 < kEnd) {
            turn_pair<T, kPart, kFirst + 2, kEnd, 2>(sums, ring, buffer, block, bias, false);
          }
        }
      }
    } else {
      turn_chunk<T, kPart, kChunk + 1>(sums, ring, buffer, part, chunk, pass, bias);
    }
  }
}

// Turns a block's tokens of part number `part`, from group kGroup on.
template <class T, int kPart, int kGroup>
TENDON_DEVICE void turn_groups(const float (&sums)[T::kBlocks][4 * T::kGroups], const Ring<T>& ring, uint32_t strip,
                               int part, int block, const float (&bias)[T::kBlocks][2], bool adds) {
  constexpr int kBegin = T::template kBegin<kPart>;
  constexpr int kEnd = T::template kBegin<kPart + 1>;
  if constexpr (kGroup < kEnd) {
    if (kGroup > kBegin || part == kPart) {
      turn_pair<T, kPart, kGroup, kEnd, kGroup - kBegin>(sums, ring, strip, block, bias, adds);
      turn_groups<T, kPart, kGroup + 2>(sums, ring, strip, part, block, bias, adds);
    } else if constexpr (kPart + 1 < T::kParts) {
      turn_groups<T, kPart + 1, kEnd>(sums, ring, strip, part, block, bias, adds);
    }
  }
}

// Finishes a warpgroup's sums of this block's part: gathered in shared memory, on the residual that was copied there,
// from where 64 columns of all tokens leave by one copy.
template <class T>
TENDON_DEVICE void finish(const float (&sums)[T::kBlocks][4 * T::kGroups], const TileArgs& a, const CUtensorMap* out,
                          const Ring<T>& ring, const Place<T>& place, int warpgroup, int first_col, int first_token,
                          const float (&bias)[T::kBlocks][2]) {
  const int first_group = place.part * T::kGroups / T::kParts;
  const int tokens = (place.part + 1) * T::kGroups / T::kParts * 8 - first_group * 8;
  first_token += first_group * 8;
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block) {
    const int strip = warpgroup * T::kBlocks + block;
    Ring<T> step = ring;
    for (int i = 0; i < strip / T::kStripsOfStage; ++i) step.next();
    wait_phase(step.full(), step.phase);
    turn_groups<T, 0, 0>(sums, ring, step.strip(strip), place.part, block, bias, a.adds);
    shared_written();
    warpgroup_sync(1 + warpgroup);
    const int col = first_col + block * 64;
    if (threadIdx.x % 128 == 0 && col < a.cols) {
#pragma unroll 1
      for (int t = 0; t < min(tokens, a.rows - first_token); t += T::kBoxTokens) {
        store_box(out, step.strip(strip) + t * kRowBytes, col, first_token + t);
      }
    }
  }
  if (threadIdx.x % 128 == 0) stored_boxes_wait();
}

// --- codes with static scales ----------------------------------------------------------------------------------------

// A warpgroup, for the tokens of its tile.
template <class T>
TENDON_DEVICE void write_unit_scales(const TileArgs& a, int first_token) {
#pragma unroll
  for (int i = 0; i < T::kTokens; i += 128) {
    const int in_tile = i + static_cast<int>(threadIdx.x) % 128;
    if (in_tile < T::kTokens && first_token + in_tile < a.rows) a.out_scales[first_token + in_tile] = 1.0F;
  }
}

// Finishes a warpgroup's sums, bias and GELU behind them, as codes: gathered like finish() does.
template <class T>
TENDON_DEVICE void finish_codes(const float (&sums)[T::kBlocks][4 * T::kGroups], const TileArgs& a,
                                const CUtensorMap* out, const Ring<T>& ring, int warpgroup, int first_col,
                                int first_token, const float (&bias)[T::kBlocks][2]) {
  static_assert(T::kPairsColumns);
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block) {
    const int strip = warpgroup * T::kBlocks + block;
    const int col = first_col + block * 64;
    float factors[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int own = column_of<T>(col, warp, h);
      factors[h] = own < a.cols ? a.factors[own] : 0.0F;
    }
    // Two columns' codes of a token in each half of a word: of tokens 2 · (lane % 4) and the next one of a group.
    const auto codes_of = [&](const float* y) {
      float numbers[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) numbers[i] = rounded<Bf16>(gelu_tanh(y[i] + bias[block][i / 2])) * factors[i / 2];
      using Code = typename T::Result;
      return pack_codes(Code{}, numbers[0], numbers[2]) | pack_codes(Code{}, numbers[1], numbers[3]) << 16;
    };
    Ring<T> step = ring;
    for (int i = 0; i < strip / T::kStripsOfStage; ++i) step.next();
    wait_phase(step.full(), step.phase);
    const uint32_t to = step.strip(strip);
#pragma unroll
    for (int g = 0; g < T::kGroups; g += 2) {
      const uint32_t at = to + swizzled_64((g + lane() / 8 % 2) * 8 + lane() % 8, warp);
      const uint32_t first = codes_of(&sums[block][4 * g]);
      if (g + 1 < T::kGroups) {
        store_transposed(at, first, codes_of(&sums[block][4 * g + 4]));
      } else {
        store_transposed(at, first);
      }
    }
    shared_written();
    warpgroup_sync(1 + warpgroup);
    if (threadIdx.x % 128 == 0 && col < a.cols) {
#pragma unroll 1
      for (int t = 0; t < min(T::kTokens, a.rows - first_token); t += T::kBoxTokens) {
        store_box(out, to + t * T::kStripRowBytes, col / 2, first_token + t);
      }
    }
  }
  if (threadIdx.x % 128 == 0) stored_boxes_wait();
}

// Eight columns of a token from bf16, as they lie in memory.
template <class Code>
TENDON_DEVICE uint2 codes_of_octet(const Octet& y, const float (&factors)[8]) {
  uint32_t packed[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    packed[j] = pack_codes(Code{}, low_bf16(y.pair[j]) * factors[2 * j], high_bf16(y.pair[j]) * factors[2 * j + 1]);
  }
  return {packed[0] | packed[1] << 16, packed[2] | packed[3] << 16};
}

// --- GELU(gate) · up -------------------------------------------------------------------------------------------------

// Eight tokens × a pair of a thread: gate in y[0], y[1], up in y[2], y[3].
TENDON_DEVICE uint32_t finished_gate_up(const float* y) {
  float out[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) out[i] = rounded<Bf16>(gelu_tanh(rounded<Bf16>(y[i]))) * rounded<Bf16>(y[2 + i]);
  return pack_bf16(out[0], out[1]);
}

// The same for gate and up, where a thread has both of a pair: finished in registers, then turned. Unrolled, for a
// block runs it once a tile, behind the other warpgroup's products (rolled like the other: 3 % slower).
template <class T>
TENDON_DEVICE void finish_gate_up(const float (&sums)[T::kBlocks][4 * T::kGroups], const TileArgs& a,
                                  const Ring<T>& ring, int warpgroup, int first_col, int first_token) {
  static_assert(T::kBlocks == 2 && T::kParts == 1);
  constexpr int kChunks = (T::kGroups + kChunkGroups - 1) / kChunkGroups;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int warp = thread / 32;
  const int matrix = lane() / 8;
  const int piece = thread % kPieces;
  const int token = thread / kPieces;
  const int col = first_col + piece * 8;
  [[maybe_unused]] float factors[8] = {};
  if constexpr (T::kMakesCodes) {
    if (col < a.cols) load_eight(a.factors + col, factors);
  }
  warpgroup_sync(1 + warpgroup);  // the buffers are read no more
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const uint32_t buffer = ring.turn(warpgroup) + chunk % 2 * T::kTurnBytes;
#pragma unroll
    for (int local = 0; local < kChunkGroups; local += 2) {  // two blocks × two groups
      const int group = chunk * kChunkGroups + local;
      if (group >= T::kGroups) continue;
      const uint32_t to = buffer + turned((local + matrix / 2) * 8 + lane() % 8, matrix % 2 * 4 + warp);
      const uint32_t first = finished_gate_up(&sums[0][4 * group]);
      const uint32_t second = finished_gate_up(&sums[1][4 * group]);
      if (group + 1 < T::kGroups) {
        store_transposed(to, first, second, finished_gate_up(&sums[0][4 * group + 4]),
                         finished_gate_up(&sums[1][4 * group + 4]));
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
        auto* const to = static_cast<typename T::Result*>(a.out) + row * a.out_stride + col;
        if constexpr (T::kMakesCodes) {
          *reinterpret_cast<uint2*>(to) = codes_of_octet<typename T::Result>(y, factors);
        } else {
          *reinterpret_cast<Octet*>(to) = y;
        }
      }
    }
  }
}

// --- rotation --------------------------------------------------------------------------------------------------------

// Where a token's row goes (negative: nowhere), and eight angles.
struct Angles {
  int target = -1;
  float cosines[8] = {};
  float sines[8] = {};
};

// A head's columns d and d + D/2 alternate by eight in a tile (the copy interleaves them): where they are turned, a
// thread has eight of both of a token, rotates them and sends them where q, or the cache's keys and values, are.
template <class T>
TENDON_DEVICE void finish_rope(const float (&sums)[T::kBlocks][4 * T::kGroups], const TileArgs& a, const Ring<T>& ring,
                               const Place<T>& place, int warpgroup, int first_col, int first_token) {
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
      turn_chunk<T, 0, 0>(sums, ring, buffer, place.part, chunk, pass, kNoBias);
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
