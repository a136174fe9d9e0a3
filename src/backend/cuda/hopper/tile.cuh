// y = x · wᵀ and what follows it, on wgmma: the weights are the rows of the tensor cores' tiles and the tokens their
// columns, so that a tile fits any number of tokens in steps of eight.
//   w (N, K) bf16 [gate and up: two of them], x (M, K) bf16, out (M, N) bf16, bias (N) f32, residual (M, N) bf16.
//   K, N multiples of 8, all rows 16-byte aligned.
// One warpgroup copies: boxes of 64 along K, by TMA, into a ring of stages; blocks of a cluster share what they have in
// common. The others multiply 64 · kBlocks weight rows each and run through the ring independently, so that one's
// epilogue hides behind the other's products. Gate and up rows alternate by eight in a tile (the copy interleaves
// them), so that one thread has both sums of a pair. With kParts, as many blocks of a cluster share out K: each sends
// the others their tokens' sums through shared memory and finishes its own, in a fixed order.
#pragma once

#include "backend/cuda/hopper/copies.cuh"
#include "backend/cuda/hopper/tiles.h"
#include "backend/cuda/hopper/wgmma.cuh"

namespace tendon::gpu::hopper {

constexpr int kRowBytes = 2 * kDepth;
constexpr int kSharedLimit = 232448;

template <int kWarpgroups_, int kBlocks_, int kTokens_, int kStages_, int kClusterWeights_ = 1, int kClusterTokens_ = 1,
          int kParts_ = 1>
struct WgmmaTile {
  static constexpr int kWarpgroups = kWarpgroups_;  // that multiply
  static constexpr int kBlocks = kBlocks_;          // of 64 weight rows, per warpgroup
  static constexpr int kTokens = kTokens_;
  static constexpr int kStages = kStages_;
  static constexpr int kClusterWeights = kClusterWeights_;  // tiles that share tokens
  static constexpr int kClusterTokens = kClusterTokens_;    // tiles that share weights
  static constexpr int kParts = kParts_;
  static constexpr int kCluster = kClusterWeights * kClusterTokens * kParts;
  static constexpr int kWeights = 64 * kBlocks * kWarpgroups;
  static constexpr int kGroups = kTokens / 8;
  static constexpr int kMultipliers = 128 * kWarpgroups;
  static constexpr int kThreads = kMultipliers + 128;
  static constexpr int kStageBytes = (kWeights + kTokens) * kRowBytes;
  // Groups of eight tokens that the epilogue turns at once, in one of a warpgroup's two buffers.
  static constexpr int kGroupBytes = 8 * 64 * kBlocks * 2;
  static constexpr int kFixedBytes = kStages * kStageBytes + (2 * kStages + 1) * 8 + 1024;
  static constexpr int kChunkGroups = kFixedBytes + 8 * kWarpgroups * kGroupBytes <= kSharedLimit ? 4 : 2;
  static constexpr int kTurnBytes = kChunkGroups * kGroupBytes;
  static constexpr int kSharedBytes = kFixedBytes + kWarpgroups * 2 * kTurnBytes;
  static constexpr int kMostGroups = (kGroups + kParts - 1) / kParts;
  template <int kPart>
  static constexpr int kBegin = kPart* kGroups / kParts;  // the first group of tokens that a part finishes
  static_assert(kTokens % 8 == 0 && kTokens <= 256);
  static_assert(kWeights / kClusterTokens <= 256 && kWeights % (16 * kClusterTokens) == 0);
  static_assert(kTokens % (8 * kClusterWeights) == 0);
  static_assert(kSharedBytes <= kSharedLimit);
  static_assert(kParts == 1 || (kParts - 1) * kMostGroups * kBlocks * kMultipliers * 16 <= kStages * kStageBytes);
};

// Where a thread stands.
template <class T>
struct Place {
  int part, weights, tokens;  // in its cluster
  TENDON_DEVICE explicit Place(int rank)
      : part(rank / (T::kClusterWeights * T::kClusterTokens)),
        weights(rank / T::kClusterTokens % T::kClusterWeights),
        tokens(rank % T::kClusterTokens) {}
  // To this block, by the other parts.
  TENDON_DEVICE int bytes_sent() const {
    const int groups = (part + 1) * T::kGroups / T::kParts - part * T::kGroups / T::kParts;
    return (T::kParts - 1) * T::kBlocks * groups * T::kMultipliers * 16;
  }
  TENDON_DEVICE int rank(int at_weights, int at_tokens) const {
    return (part * T::kClusterWeights + at_weights) * T::kClusterTokens + at_tokens;
  }
  TENDON_DEVICE int first_step(const TileArgs& a) const { return a.steps * part / T::kParts; }
  TENDON_DEVICE int end_step(const TileArgs& a) const { return a.steps * (part + 1) / T::kParts; }
  TENDON_DEVICE int first_token(const TileArgs& a, int tile) const {
    return (tile % a.token_tiles * T::kClusterTokens + tokens) * T::kTokens;
  }
  // Of the rows that tiles consist of: gate and up count both.
  TENDON_DEVICE int first_weight(const TileArgs& a, int tile) const {
    return (tile / a.token_tiles * T::kClusterWeights + weights) * T::kWeights;
  }
};

// The ring of stages, as addresses in shared memory.
template <class T>
struct Ring {
  uint32_t base;
  int stage = 0;
  uint32_t phase = 0;
  TENDON_DEVICE uint32_t weights() const { return base + stage * T::kStageBytes; }
  TENDON_DEVICE uint32_t tokens() const { return weights() + T::kWeights * kRowBytes; }
  TENDON_DEVICE uint32_t barriers() const {
    return base + T::kStages * T::kStageBytes + T::kWarpgroups * 2 * T::kTurnBytes;
  }
  TENDON_DEVICE uint32_t full() const { return barriers() + stage * 8; }
  TENDON_DEVICE uint32_t empty() const { return barriers() + (T::kStages + stage) * 8; }
  TENDON_DEVICE uint32_t turn(int warpgroup) const {
    return base + T::kStages * T::kStageBytes + warpgroup * 2 * T::kTurnBytes;
  }
  // Where this thread's sums of other parts lie, in place of the stages.
  TENDON_DEVICE uint32_t part_sums(int slot) const {
    const int multiplier = static_cast<int>(threadIdx.x) - 128;
    return base + (slot * T::kBlocks * T::kMostGroups * T::kMultipliers + multiplier) * 16;
  }
  // Of the sums that other parts send; used once.
  TENDON_DEVICE uint32_t sent() const { return barriers() + 2 * T::kStages * 8; }
  TENDON_DEVICE void next() {
    if (++stage == T::kStages) stage = 0, phase ^= 1;
  }
};

// This block's share of what the cluster needs at one step, to all that need it.
template <class T, Tail kTail>
TENDON_DEVICE void copy_weights(const Ring<T>& ring, const CUtensorMap* map, const Place<T>& place, int first,
                                int step) {
  constexpr int kShare = T::kWeights / T::kClusterTokens;
  const auto blocks = static_cast<uint16_t>(((1 << T::kClusterTokens) - 1) << place.rank(place.weights, 0));
  const uint32_t to = ring.weights() + place.tokens * kShare * kRowBytes;
  first += place.tokens * kShare;
  if constexpr (kTail == Tail::kGateUp) {
    copy_box<(T::kClusterTokens > 1)>(to, map, ring.full(), blocks, step * kDepth, 0, 0, first / 16);
  } else {
    copy_box<(T::kClusterTokens > 1)>(to, map, ring.full(), blocks, step * kDepth, first);
  }
}
template <class T>
TENDON_DEVICE void copy_tokens(const Ring<T>& ring, const CUtensorMap* map, const Place<T>& place, int first,
                               int step) {
  constexpr int kShare = T::kTokens / T::kClusterWeights;
  uint32_t blocks = 0;
#pragma unroll
  for (int w = 0; w < T::kClusterWeights; ++w) blocks |= 1U << place.rank(w, place.tokens);
  copy_box<(T::kClusterWeights > 1)>(ring.tokens() + place.weights * kShare * kRowBytes, map, ring.full(),
                                     static_cast<uint16_t>(blocks), step * kDepth, first + place.weights * kShare);
}

// One thread feeds the ring. Weights are no other kernel's results: the first are on their way before the kernels in
// front have ended. Returns for how many steps.
template <class T, Tail kTail>
TENDON_DEVICE int feed_early(Ring<T> ring, const CUtensorMap* weights, const TileArgs& a, const Place<T>& place,
                             int first_tile) {
  const int begin = place.first_step(a);
  const int early = min(place.end_step(a) - begin, T::kStages);
  const int first = place.first_weight(a, first_tile);
#pragma unroll 1
  for (int i = 0; i < early; ++i, ring.next()) {
    arrive_expecting(ring.full(), T::kStageBytes);
    copy_weights<T, kTail>(ring, weights, place, first, begin + i);
  }
  return early;
}
template <class T, Tail kTail>
TENDON_DEVICE void feed(Ring<T> ring, const CUtensorMap* weights, const CUtensorMap* tokens, const TileArgs& a,
                        const Place<T>& place, int first_tile, int tile_stride, int early) {
  const int begin = place.first_step(a);
  const int end = place.end_step(a);
  wait_for_producers();
  for (int tile = first_tile; tile < a.tiles; tile += tile_stride) {
    const int first_weight = place.first_weight(a, tile);
    const int first_token = place.first_token(a, tile);
#pragma unroll 1
    for (int step = begin; step < end; ++step, ring.next()) {
      if (early > 0) {
        --early;
      } else {
        wait_phase(ring.empty(), ring.phase ^ 1);
        arrive_expecting(ring.full(), T::kStageBytes);
        copy_weights<T, kTail>(ring, weights, place, first_weight, step);
      }
      copy_tokens<T>(ring, tokens, place, first_token, step);
    }
  }
  launch_dependents();
}

// Sends the sums of other parts' tokens to them.
template <class T, int kPart>
TENDON_DEVICE void send_parts(const float (&sums)[T::kBlocks][4 * T::kGroups], const Ring<T>& ring,
                              const Place<T>& place) {
  if constexpr (kPart < T::kParts) {
    if (place.part != kPart) {
      const int slot = place.part < kPart ? place.part : place.part - 1;
      const int rank = (kPart * T::kClusterWeights + place.weights) * T::kClusterTokens + place.tokens;
      const uint32_t to = peer_address(ring.part_sums(slot), rank);
      const uint32_t barrier = peer_address(ring.sent(), rank);
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

// Where a warpgroup turns its sums: tokens × 16-byte pieces of columns, gate and up one behind the other; swizzled so
// that neither the rows that are written nor the pieces that are read collide.
template <class T, Tail kTail>
struct Turn {
  static constexpr bool kGateUp = kTail == Tail::kGateUp;
  static constexpr int kPieces = kGateUp ? 4 * T::kBlocks : 8;  // of a token, in one pass over columns
  static constexpr int kPasses = kGateUp ? 1 : T::kBlocks;
  static constexpr int kTokens = 8 * T::kChunkGroups;
  static constexpr int kBytes = kTokens * kPieces * 16;
  static constexpr int kBufferBytes = kGateUp ? 2 * kBytes : kBytes;
  static_assert(kBufferBytes <= T::kTurnBytes && (kPieces == 4 || kPieces == 8));
  static TENDON_DEVICE uint32_t offset(int token, int piece) {
    const int swizzled = kPieces == 8 ? piece ^ (token & 7) : piece ^ (token >> 1 & 3);
    return static_cast<uint32_t>((token * kPieces + swizzled) * 16);
  }
};

// Rounds groups kGroup and kGroup + 1 (up to kEnd) of a block's sums and turns them; the first is the chunk's
// kLocal-th.
template <class T, Tail kTail, int kPart, int kGroup, int kEnd, int kLocal>
TENDON_DEVICE void turn_pair(const float (&sums)[T::kBlocks][4 * T::kGroups], const Ring<T>& ring, uint32_t buffer,
                             int block, const float (&bias)[T::kBlocks][2]) {
  using Turned = Turn<T, kTail>;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int matrix = lane() / 8;
  const int token = (kLocal + matrix / 2) * 8 + lane() % 8;
  uint32_t to;
  if constexpr (kTail == Tail::kGateUp) {
    to = buffer + Turned::offset(token, block * 4 + warp) + matrix % 2 * Turned::kBytes;
  } else {
    to = buffer + Turned::offset(token, warp * 2 + matrix % 2);
  }
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    constexpr int kLast = kGroup + 1 < kEnd ? kGroup + 1 : kGroup;
    float y[4];
    if (i == 0) {
      all_parts<T, kPart, kGroup>(&sums[block][4 * kGroup], ring, block, y);
    } else {
      all_parts<T, kPart, kLast>(&sums[block][4 * kLast], ring, block, y);
    }
    hold(y);  // what follows is not computed for all chunks in front of the test for one
    if constexpr (kTail != Tail::kGateUp) {
#pragma unroll
      for (int j = 0; j < 4; ++j) y[j] += bias[block][j / 2];
    }
    if constexpr (kTail == Tail::kGelu) {
#pragma unroll
      for (int j = 0; j < 4; ++j) y[j] = gelu_tanh(y[j]);
    }
    pairs[2 * i] = pack_bf16(y[0], y[1]);
    pairs[2 * i + 1] = pack_bf16(y[2], y[3]);
  }
  if constexpr (kGroup + 1 < kEnd) {
    store_transposed(to, pairs[0], pairs[1], pairs[2], pairs[3]);
  } else {
    store_transposed(to, pairs[0], pairs[1]);
  }
}

// Turns chunk number `chunk` of part number `part`: tests until it finds the code for it, for registers have no index.
template <class T, Tail kTail, int kPart, int kChunk>
TENDON_DEVICE void turn_chunk(const float (&sums)[T::kBlocks][4 * T::kGroups], const Ring<T>& ring, uint32_t buffer,
                              int part, int chunk, int pass, const float (&bias)[T::kBlocks][2]) {
  constexpr int kFirst = T::template kBegin<kPart> + kChunk * T::kChunkGroups;
  constexpr int kEnd = T::template kBegin<kPart + 1>;
  if constexpr (kPart == T::kParts) {
    return;
  } else if constexpr (kFirst >= kEnd) {
    turn_chunk<T, kTail, kPart + 1, 0>(sums, ring, buffer, part, chunk, pass, bias);
  } else {
    if (part == kPart && chunk == kChunk) {
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) {
        if (kTail == Tail::kGateUp || block == pass) {
          turn_pair<T, kTail, kPart, kFirst, kEnd, 0>(sums, ring, buffer, block, bias);
          if constexpr (kFirst + 2 < kEnd && T::kChunkGroups > 2) {
            turn_pair<T, kTail, kPart, kFirst + 2, kEnd, 2>(sums, ring, buffer, block, bias);
          }
        }
      }
    } else {
      turn_chunk<T, kTail, kPart, kChunk + 1>(sums, ring, buffer, part, chunk, pass, bias);
    }
  }
}

// Finishes a warpgroup's sums of this block's part: turned in shared memory, a chunk of tokens at a time, so that a
// token's columns leave in one piece. Two buffers take turns. A rolled loop: code that runs once costs more time to
// fetch than to execute.
template <class T, Tail kTail>
TENDON_DEVICE void finish(const float (&sums)[T::kBlocks][4 * T::kGroups], const TileArgs& a, const Ring<T>& ring,
                          const Place<T>& place, int warpgroup, int first_col, int first_token,
                          const float (&bias)[T::kBlocks][2]) {
  using Turned = Turn<T, kTail>;
  constexpr int kTurns = Turned::kTokens * Turned::kPieces / 128;  // pieces of a thread
  constexpr int kTokenStep = 128 / Turned::kPieces;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int first_group = place.part * T::kGroups / T::kParts;
  const int groups = (place.part + 1) * T::kGroups / T::kParts - first_group;
  const int chunks = (groups + T::kChunkGroups - 1) / T::kChunkGroups;
  const int piece = thread % Turned::kPieces;
  const int token = thread / Turned::kPieces;
  const int row = first_token + first_group * 8 + token;
  const int end = min(a.rows, first_token + (first_group + groups) * 8);
  const bool adds = kTail == Tail::kPlain && a.residual != nullptr;
  const int col = first_col + piece * 8;
  Octet residual[kTurns] = {};
  const auto load_residual = [&](int pass, int chunk) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const int at = row + chunk * Turned::kTokens + i * kTokenStep;
      const int at_col = col + pass * 64;
      if (at < end && at_col < a.cols) residual[i] = load_fresh(a.residual + at * a.residual_stride + at_col);
    }
  };
  if (adds) load_residual(0, 0);
  warpgroup_sync(1 + warpgroup);  // the buffers are read no more
  uint32_t buffer = ring.turn(warpgroup);
  const uint32_t both = buffer + buffer + T::kTurnBytes;
#pragma unroll 1
  for (int pass = 0; pass < Turned::kPasses; ++pass) {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk, buffer = both - buffer) {
      turn_chunk<T, kTail, 0, 0>(sums, ring, buffer, place.part, chunk, pass, bias);
      warpgroup_sync(1 + warpgroup);
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        const uint32_t from = buffer + Turned::offset(token + i * kTokenStep, piece);
        Octet y = load_octet(from);
        if constexpr (kTail == Tail::kGateUp) {
          const Octet up = load_octet(from + Turned::kBytes);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            y.pair[j] = pack_bf16(rounded<Bf16>(gelu_tanh(low_bf16(y.pair[j]))) * low_bf16(up.pair[j]),
                                  rounded<Bf16>(gelu_tanh(high_bf16(y.pair[j]))) * high_bf16(up.pair[j]));
          }
        }
        if (adds) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            y.pair[j] = pack_bf16(low_bf16(y.pair[j]) + low_bf16(residual[i].pair[j]),
                                  high_bf16(y.pair[j]) + high_bf16(residual[i].pair[j]));
          }
        }
        const int at = row + chunk * Turned::kTokens + i * kTokenStep;
        const int at_col = col + pass * 64;
        if (at < end && at_col < a.cols) *reinterpret_cast<Octet*>(a.out + at * a.out_stride + at_col) = y;
      }
      if (adds) {
        const bool more = chunk + 1 < chunks;
        if (more || pass + 1 < Turned::kPasses) load_residual(more ? pass : pass + 1, more ? chunk + 1 : 0);
      }
    }
  }
}

// One warpgroup multiplies and finishes its rows of every tile.
template <class T, Tail kTail>
TENDON_DEVICE void multiply(Ring<T> ring, const TileArgs& a, const Place<T>& place, int warpgroup, int first_tile,
                            int tile_stride) {
  const int begin = place.first_step(a);
  const int end = place.end_step(a);
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const auto release = [&](const Ring<T>& used) {
    constexpr int kSharers = T::kClusterTokens + T::kClusterWeights - 1;
    const int l = lane();
    if (l < kSharers) {
      const int w = l - T::kClusterTokens;
      arrive_at(used.empty(), l < T::kClusterTokens ? place.rank(place.weights, l)
                                                    : place.rank(w + (w >= place.weights), place.tokens));
    }
  };
  float sums[T::kBlocks][4 * T::kGroups];
  for (int tile = first_tile; tile < a.tiles; tile += tile_stride) {
    const int first_weight = place.first_weight(a, tile) + warpgroup * 64 * T::kBlocks;
    const int first_col = kTail == Tail::kGateUp ? first_weight / 2 : first_weight;
    float bias[T::kBlocks][2] = {};
    if (kTail != Tail::kGateUp && a.bias != nullptr) {
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int col = first_col + block * 64 + warp * 16 + h * 8 + lane() / 4;
          bias[block][h] = col < a.cols ? a.bias[col] : 0.0F;
        }
      }
    }
    Ring<T> used = ring;
    for (int step = begin; step < end; ++step) {
      wait_phase(ring.full(), ring.phase);
      const uint64_t w = swizzled_rows(ring.weights() + warpgroup * T::kBlocks * 64 * kRowBytes);
      const uint64_t x = swizzled_rows(ring.tokens());
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
        for (int block = 0; block < T::kBlocks; ++block) {
          Wgmma<T::kGroups>::run(sums[block], w + block * (64 * kRowBytes / 16) + k * kDescriptorStep,
                                 x + k * kDescriptorStep, step > begin || k > 0);
        }
      }
      wgmma_commit();
      if (step > begin) {
        wgmma_wait<1>();
        release(used);
      }
      used = ring;
      ring.next();
    }
    wgmma_wait<0>();
    release(used);
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) hold(sums[block]);
    if constexpr (T::kParts > 1) {  // one tile a block: launched so
      cluster_meet();               // nobody reads the stages any more, where the sums go
      send_parts<T, 0>(sums, ring, place);
      wait_phase(ring.sent(), 0);
    }
    finish<T, kTail>(sums, a, ring, place, warpgroup, first_col, place.first_token(a, tile), bias);
  }
}

template <class T, Tail kTail>
__global__ void __launch_bounds__(T::kThreads, 1)
    tile_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap tokens, TileArgs a) {
#ifdef TENDON_HOPPER
  extern __shared__ unsigned char dynamic[];
  const Ring<T> ring{(shared_address(dynamic) + 1023) & ~1023U};
  const Place<T> place(T::kCluster > 1 ? cluster_rank() : 0);
  const int first_tile = static_cast<int>(blockIdx.x) / T::kCluster;
  const int tile_stride = static_cast<int>(gridDim.x) / T::kCluster;
  int early = 0;
  if (threadIdx.x == 0) {
    prefetch_map(&weights);
    prefetch_map(&tokens);
    Ring<T> each = ring;
    for (int s = 0; s < T::kStages; ++s, each.next()) {
      barrier_init(each.full(), 1);
      barrier_init(each.empty(), T::kWarpgroups * 4 * (T::kClusterTokens + T::kClusterWeights - 1));
    }
    if constexpr (T::kParts > 1) {
      barrier_init(ring.sent(), 1);
      arrive_expecting(ring.sent(), place.bytes_sent());
    }
    barrier_init_done();
    // Only this block's barriers take part.
    if constexpr (T::kClusterTokens == 1) early = feed_early<T, kTail>(ring, &weights, a, place, first_tile);
  }
  block_sync();
  if constexpr (T::kCluster > 1) cluster_meet();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
  if (warpgroup < 0) {
    if constexpr (T::kWarpgroups > 1) give_registers<(T::kWarpgroups > 2 ? 32 : 24)>();
    if (threadIdx.x == 0) {
      if constexpr (T::kClusterTokens > 1) early = feed_early<T, kTail>(ring, &weights, a, place, first_tile);
      feed<T, kTail>(ring, &weights, &tokens, a, place, first_tile, tile_stride, early);
    }
    __syncwarp();
    if constexpr (T::kParts > 1) cluster_meet();
  } else {
    if constexpr (T::kWarpgroups > 1) take_registers<(T::kWarpgroups > 2 ? 160 : 240)>();
    wait_for_producers();
    multiply<T, kTail>(ring, a, place, warpgroup, first_tile, tile_stride);
  }
  if constexpr (T::kCluster > 1 && T::kParts == 1) {  // others still copy into this block, or arrive at its barriers
    cluster_meet();
  }
#endif
}

}  // namespace tendon::gpu::hopper
