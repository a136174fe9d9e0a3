// From a warpgroup's sums to what is stored: parts of K added up, bias, activation, residual; codes in place of bf16.
#pragma once

#include "backend/cuda/hopper/scales.cuh"

namespace tendon::gpu::hopper {

// Sends the sums of other parts' tokens to them.
template <class T, class Sum, int kPart>
TENDON_DEVICE void send_parts(const Sum (&sums)[T::kBlocks][4 * T::kGroups], const Ring<T>& ring,
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
    send_parts<T, Sum, kPart + 1>(sums, ring, place);
  }
}

// Eight tokens × two rows of a thread: its own sums and, in the order of K, those of the other parts.
template <class T, class Sum, int kPart, int kGroup>
TENDON_DEVICE void all_parts(const Sum* own, const Ring<T>& ring, int block, Sum (&y)[4]) {
#pragma unroll
  for (int part = 0; part < T::kParts; ++part) {
    Sum next[4];
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
template <class T, class Sum, int kPart, int kGroup, int kEnd, int kLocal>
TENDON_DEVICE void turn_pair(const TileSums<T, Sum>& sums, uint32_t buffer, int block,
                             const float (&bias)[T::kBlocks][2], bool adds) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int matrix = lane() / 8;
  const uint32_t to = buffer + turned((kLocal + matrix / 2) * 8 + lane() % 8, warp * 2 + matrix % 2);
  constexpr int kPairs = kGroup + 1 < kEnd ? 4 : 2;
  uint32_t pairs[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs / 2; ++i) {
    constexpr int kLast = kGroup + kPairs / 2 - 1;
    Sum whole[4];
    if (i == 0) {
      all_parts<T, Sum, kPart, kGroup>(&sums.sums[block][4 * kGroup], sums.ring, block, whole);
    } else {
      all_parts<T, Sum, kPart, kLast>(&sums.sums[block][4 * kLast], sums.ring, block, whole);
    }
    float y[4];
    sums.scales.apply(sums.ring, sums.warpgroup, i == 0 ? kGroup : kLast, block, whole, y);
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
template <class T, class Sum, int kPart, int kChunk>
TENDON_DEVICE void turn_chunk(const TileSums<T, Sum>& sums, uint32_t buffer, int part, int chunk, int pass,
                              const float (&bias)[T::kBlocks][2]) {
  constexpr int kFirst = T::template kBegin<kPart> + kChunk * kChunkGroups;
  constexpr int kEnd = T::template kBegin<kPart + 1>;
  if constexpr (kPart == T::kParts) {
    return;
  } else if constexpr (kFirst >= kEnd) {
    turn_chunk<T, Sum, kPart + 1, 0>(sums, buffer, part, chunk, pass, bias);
  } else {
    if (part == kPart && chunk == kChunk) {
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) {
        if (block == pass) {
          turn_pair<T, Sum, kPart, kFirst, kEnd, 0>(sums, buffer, block, bias, false);
          if constexpr (kFirst + 2 < kEnd) {
            turn_pair<T, Sum, kPart, kFirst + 2, kEnd, 2>(sums, buffer, block, bias, false);
          }
        }
      }
    } else {
      turn_chunk<T, Sum, kPart, kChunk + 1>(sums, buffer, part, chunk, pass, bias);
    }
  }
}

// Turns a block's tokens of part number `part`, from group kGroup on.
template <class T, class Sum, int kPart, int kGroup>
TENDON_DEVICE void turn_groups(const TileSums<T, Sum>& sums, uint32_t strip, int part, int block,
                               const float (&bias)[T::kBlocks][2], bool adds) {
  constexpr int kBegin = T::template kBegin<kPart>;
  constexpr int kEnd = T::template kBegin<kPart + 1>;
  if constexpr (kGroup < kEnd) {
    if (kGroup > kBegin || part == kPart) {
      turn_pair<T, Sum, kPart, kGroup, kEnd, kGroup - kBegin>(sums, strip, block, bias, adds);
      turn_groups<T, Sum, kPart, kGroup + 2>(sums, strip, part, block, bias, adds);
    } else if constexpr (kPart + 1 < T::kParts) {
      turn_groups<T, Sum, kPart + 1, kEnd>(sums, strip, part, block, bias, adds);
    }
  }
}

// Finishes a warpgroup's sums of this block's part: gathered in shared memory, on the residual that was copied there,
// from where 64 columns of all tokens leave by one copy.
template <class T, class Sum>
TENDON_DEVICE void finish(const TileSums<T, Sum>& sums, const TileArgs& a, const CUtensorMap* out,
                          const Place<T>& place, int first_col, int first_token, const float (&bias)[T::kBlocks][2]) {
  const int warpgroup = sums.warpgroup;
  const int first_group = place.part * T::kGroups / T::kParts;
  const int tokens = (place.part + 1) * T::kGroups / T::kParts * 8 - first_group * 8;
  first_token += first_group * 8;
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block) {
    const int strip = warpgroup * T::kBlocks + block;
    Ring<T> step = sums.ring;
    for (int i = 0; i < strip / T::kStripsOfStage; ++i) step.next();
    wait_phase(step.full(), step.phase);
    turn_groups<T, Sum, 0, 0>(sums, step.strip(strip), place.part, block, bias, a.adds);
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
template <class T, class Sum>
TENDON_DEVICE void finish_codes(const TileSums<T, Sum>& sums, const TileArgs& a, const CUtensorMap* out, int first_col,
                                int first_token, const float (&bias)[T::kBlocks][2],
                                const float (&factors)[T::kBlocks][2]) {
  static_assert(T::kPairsColumns);
  const int warpgroup = sums.warpgroup;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block) {
    const int strip = warpgroup * T::kBlocks + block;
    const int col = first_col + block * 64;
    // Two columns' codes of a token in each half of a word: of tokens 2 · (lane % 4) and the next one of a group.
    const auto codes_of = [&](int group) {
      float y[4];
      sums.numbers(group, block, y);
      float numbers[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) numbers[i] = gelu_tanh(y[i] + bias[block][i / 2]) * factors[block][i / 2];
      using Code = typename T::Result;
      return pack_codes(Code{}, numbers[0], numbers[2]) | pack_codes(Code{}, numbers[1], numbers[3]) << 16;
    };
    Ring<T> step = sums.ring;
    for (int i = 0; i < strip / T::kStripsOfStage; ++i) step.next();
    wait_phase(step.full(), step.phase);
    const uint32_t to = step.strip(strip);
#pragma unroll
    for (int g = 0; g < T::kGroups; g += 2) {
      const uint32_t at = to + swizzled_64((g + lane() / 8 % 2) * 8 + lane() % 8, warp);
      const uint32_t first = codes_of(g);
      if (g + 1 < T::kGroups) {
        store_transposed(at, first, codes_of(g + 1));
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

}  // namespace tendon::gpu::hopper
