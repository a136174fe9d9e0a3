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
constexpr int kChunkGroups = 4;  // of eight tokens: what the epilogue turns at once

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
  static constexpr int kTurnBytes = kChunkGroups * 8 * kRowBytes;
  static constexpr int kSharedBytes =
      kStages * kStageBytes + kWarpgroups * 2 * kTurnBytes + (2 * kStages + 1) * 8 + 1024;
  static constexpr int kMostGroups = (kGroups + kParts - 1) / kParts;
  template <int kPart>
  static constexpr int kBegin = kPart* kGroups / kParts;  // the first group of tokens that a part finishes
  static_assert(kTokens % 8 == 0 && kTokens <= 256);
  static_assert(kWeights / kClusterTokens <= 256 && kWeights % (16 * kClusterTokens) == 0);
  static_assert(kTokens % (8 * kClusterWeights) == 0);
  static_assert(kSharedBytes <= 232448);
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
  // Of the sums that other parts send; used once.
  TENDON_DEVICE uint32_t sent() const { return barriers() + 2 * T::kStages * 8; }
  TENDON_DEVICE void next() {
    if (++stage == T::kStages) stage = 0, phase ^= 1;
  }
};

// This block's share of what the cluster needs at one step, to all that need it.
template <class T, bool kGateUp>
TENDON_DEVICE void copy_weights(const Ring<T>& ring, const CUtensorMap* map, const Place<T>& place, int first,
                                int step) {
  constexpr int kShare = T::kWeights / T::kClusterTokens;
  const auto blocks = static_cast<uint16_t>(((1 << T::kClusterTokens) - 1) << place.rank(place.weights, 0));
  const uint32_t to = ring.weights() + place.tokens * kShare * kRowBytes;
  first += place.tokens * kShare;
  if constexpr (kGateUp) {
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
// front have ended.
template <class T, bool kGateUp>
TENDON_DEVICE void feed(Ring<T> ring, const CUtensorMap* weights, const CUtensorMap* tokens, const TileArgs& a,
                        const Place<T>& place, int first_tile, int tile_stride) {
  const int begin = place.first_step(a);
  const int end = place.end_step(a);
  int early = end - begin < T::kStages ? end - begin : T::kStages;
  if (first_tile >= a.tiles) early = 0;
  Ring<T> ahead = ring;
  for (int i = 0; i < early; ++i, ahead.next()) {
    arrive_expecting(ahead.full(), T::kStageBytes);
    copy_weights<T, kGateUp>(ahead, weights, place, place.first_weight(a, first_tile), begin + i);
  }
  wait_for_producers();
  for (int tile = first_tile; tile < a.tiles; tile += tile_stride) {
    const int first_weight = place.first_weight(a, tile);
    const int first_token = place.first_token(a, tile);
    for (int step = begin; step < end; ++step, ring.next()) {
      if (early > 0) {
        --early;
      } else {
        wait_phase(ring.empty(), ring.phase ^ 1);
        arrive_expecting(ring.full(), T::kStageBytes);
        copy_weights<T, kGateUp>(ring, weights, place, first_weight, step);
      }
      copy_tokens<T>(ring, tokens, place, first_token, step);
    }
  }
  launch_dependents();
}

// The sums of 8 tokens × 2 rows of a thread, finished as far as a thread can and rounded.
struct Pairs {
  uint32_t low, high;  // rows lane / 4 and that + 8
};
TENDON_DEVICE float activated(float y, Activation activation) {
  return activation == Activation::kGeluTanh ? gelu_tanh(y) : activation == Activation::kSilu ? silu(y) : y;
}
TENDON_DEVICE Pairs finished(const float (&y)[4], float bias_low, float bias_high, Activation activation) {
  return {pack_bf16(activated(y[0] + bias_low, activation), activated(y[1] + bias_low, activation)),
          pack_bf16(activated(y[2] + bias_high, activation), activated(y[3] + bias_high, activation))};
}
TENDON_DEVICE uint32_t finished_gate_up(const float (&y)[4]) {
  float out[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) out[i] = rounded<Bf16>(gelu_tanh(rounded<Bf16>(y[i]))) * rounded<Bf16>(y[2 + i]);
  return pack_bf16(out[0], out[1]);
}

// Finishes groups kBegin .. kEnd of a warpgroup's sums. They are turned in shared memory, a chunk of tokens at a time,
// so that a token's columns leave in one piece; two buffers take turns.
template <class T, bool kGateUp, int kBegin, int kEnd>
TENDON_DEVICE void finish(float (&sums)[T::kBlocks][4 * T::kGroups], const TileArgs& a, uint32_t turn, int warpgroup,
                          int first_col, int first_token, const float (&bias)[T::kBlocks][2]) {
  constexpr int kPasses = kGateUp ? 1 : T::kBlocks;      // over columns
  constexpr int kCols = kGateUp ? 32 * T::kBlocks : 64;  // of a pass
  constexpr int kPieces = kCols / 8;                     // 16-byte pieces of a token
  constexpr int kChunks = (kEnd - kBegin + kChunkGroups - 1) / kChunkGroups;
  constexpr int kTurns = kChunkGroups * 8 * kPieces / 128;  // pieces of a thread
  static_assert(kPieces == 4 || kPieces == 8);
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const int warp = thread / 32;
  const auto address = [&](int token, int piece) {
    const int swizzled = kPieces == 8 ? piece ^ (token & 7) : piece ^ (token >> 1 & 3);
    return static_cast<uint32_t>(token * kCols * 2 + swizzled * 16);
  };
  const int my_piece = thread % kPieces;
  const int my_token = thread / kPieces;
  const auto at = [&](int pass, int chunk, int i) {  // column and token of what this thread stores
    struct Spot {
      int col, token;
      bool valid;
    } spot{first_col + pass * 64 + my_piece * 8, (kBegin + chunk * kChunkGroups) * 8 + i * (128 / kPieces) + my_token,
           false};
    spot.valid = spot.token < kEnd * 8 && first_token + spot.token < a.rows && spot.col < a.cols;
    spot.token += first_token;
    return spot;
  };
  Octet residual[kTurns] = {};
  const auto load_residual = [&](int pass, int chunk) {
#pragma unroll
    for (int i = 0; i < kTurns; ++i) {
      const auto spot = at(pass, chunk, i);
      if (spot.valid) residual[i] = load_fresh(a.residual + spot.token * a.residual_stride + spot.col);
    }
  };
  if (!kGateUp && a.residual != nullptr) load_residual(0, 0);
  warpgroup_sync(1 + warpgroup);  // the buffers are read no more

#pragma unroll
  for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint32_t buffer = turn + (pass * kChunks + chunk) % 2 * T::kTurnBytes;
#pragma unroll
      for (int local = 0; local < kChunkGroups; local += kGateUp && T::kBlocks == 1 ? 4 : 2) {
        const int group = kBegin + chunk * kChunkGroups + local;
        if (group >= kEnd) continue;
        const auto four = [&](int block, int g) -> const float(&)[4] {
          return *reinterpret_cast<const float(*)[4]>(&sums[block][4 * (g < kEnd ? g : group)]);
        };
        const int row = lane() % 8;
        const int matrix = lane() / 8;
        if constexpr (kGateUp && T::kBlocks == 2) {  // two blocks × two groups
          const uint32_t to = buffer + address((local + matrix / 2) * 8 + row, matrix % 2 * 4 + warp);
          const uint32_t first = finished_gate_up(four(0, group));
          const uint32_t second = finished_gate_up(four(1, group));
          if (group + 1 < kEnd) {
            store_transposed(to, first, second, finished_gate_up(four(0, group + 1)),
                             finished_gate_up(four(1, group + 1)));
          } else {
            store_transposed(to, first, second);
          }
        } else if constexpr (kGateUp) {  // four groups; those behind the end repeat the first and are not stored
          const uint32_t to = buffer + address((local + matrix) * 8 + row, warp);
          store_transposed(to, finished_gate_up(four(0, group)), finished_gate_up(four(0, group + 1)),
                           finished_gate_up(four(0, group + 2)), finished_gate_up(four(0, group + 3)));
        } else {  // two halves × two groups
          const uint32_t to = buffer + address((local + matrix / 2) * 8 + row, warp * 2 + matrix % 2);
          const Pairs first = finished(four(pass, group), bias[pass][0], bias[pass][1], a.activation);
          if (group + 1 < kEnd) {
            const Pairs second = finished(four(pass, group + 1), bias[pass][0], bias[pass][1], a.activation);
            store_transposed(to, first.low, first.high, second.low, second.high);
          } else {
            store_transposed(to, first.low, first.high);
          }
        }
      }
      warpgroup_sync(1 + warpgroup);
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        const auto spot = at(pass, chunk, i);
        Octet piece;
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(piece.pair[0]), "=r"(piece.pair[1]), "=r"(piece.pair[2]), "=r"(piece.pair[3])
                     : "r"(buffer + address(i * (128 / kPieces) + my_token, my_piece)));
        if (!kGateUp && a.residual != nullptr) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            piece.pair[j] = pack_bf16(low_bf16(piece.pair[j]) + low_bf16(residual[i].pair[j]),
                                      high_bf16(piece.pair[j]) + high_bf16(residual[i].pair[j]));
          }
        }
        if (spot.valid) *reinterpret_cast<Octet*>(a.out + spot.token * a.out_stride + spot.col) = piece;
      }
      if (!kGateUp && a.residual != nullptr) {
        if (chunk + 1 < kChunks) {
          load_residual(pass, chunk + 1);
        } else if (pass + 1 < kPasses) {
          load_residual(pass + 1, 0);
        }
      }
    }
  }
}

// Sends the sums of other parts' tokens to them and adds up what comes for one's own.
template <class T, int kPart>
TENDON_DEVICE void send_part(const float (&sums)[T::kBlocks][4 * T::kGroups], const Ring<T>& ring,
                             const Place<T>& place, int multiplier) {
  const int slot = place.part < kPart ? place.part : place.part - 1;
  const int rank = (kPart * T::kClusterWeights + place.weights) * T::kClusterTokens + place.tokens;
  const uint32_t to =
      peer_address(ring.base + (slot * T::kBlocks * T::kMostGroups * T::kMultipliers + multiplier) * 16, rank);
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
template <class T, int kPart>
TENDON_DEVICE void add_parts(float (&sums)[T::kBlocks][4 * T::kGroups], uint32_t base, int multiplier) {
#pragma unroll
  for (int block = 0; block < T::kBlocks; ++block) {
#pragma unroll
    for (int g = T::template kBegin<kPart>; g < T::template kBegin<kPart + 1>; ++g) {
      float total[4] = {};
#pragma unroll
      for (int part = 0; part < T::kParts; ++part) {  // in the order of K
        float y[4] = {sums[block][4 * g], sums[block][4 * g + 1], sums[block][4 * g + 2], sums[block][4 * g + 3]};
        if (part != kPart) {
          const int slot = part < kPart ? part : part - 1;
          const int index = (slot * T::kBlocks + block) * T::kMostGroups + g - T::template kBegin<kPart>;
          asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                       : "=f"(y[0]), "=f"(y[1]), "=f"(y[2]), "=f"(y[3])
                       : "r"(base + (index * T::kMultipliers + multiplier) * 16)
                       : "memory");
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) total[i] += y[i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[block][4 * g + i] = total[i];
    }
  }
}

template <class T, bool kGateUp, int kPart>
TENDON_DEVICE void finish_parts(float (&sums)[T::kBlocks][4 * T::kGroups], const TileArgs& a, uint32_t base,
                                uint32_t turn, const Place<T>& place, int warpgroup, int first_col, int first_token,
                                const float (&bias)[T::kBlocks][2]) {
  if constexpr (kPart < T::kParts) {
    if (place.part == kPart) {
      if constexpr (T::kParts > 1) add_parts<T, kPart>(sums, base, static_cast<int>(threadIdx.x) - 128);
      finish<T, kGateUp, T::template kBegin<kPart>, T::template kBegin<kPart + 1>>(sums, a, turn, warpgroup, first_col,
                                                                                   first_token, bias);
    }
    finish_parts<T, kGateUp, kPart + 1>(sums, a, base, turn, place, warpgroup, first_col, first_token, bias);
  }
}
template <class T, int kPart>
TENDON_DEVICE void send_parts(const float (&sums)[T::kBlocks][4 * T::kGroups], const Ring<T>& ring,
                              const Place<T>& place) {
  if constexpr (kPart < T::kParts) {
    if (place.part != kPart) send_part<T, kPart>(sums, ring, place, static_cast<int>(threadIdx.x) - 128);
    send_parts<T, kPart + 1>(sums, ring, place);
  }
}

// One warpgroup multiplies and finishes its rows of every tile.
template <class T, bool kGateUp>
TENDON_DEVICE void multiply(Ring<T> ring, const TileArgs& a, const Place<T>& place, int warpgroup, int first_tile,
                            int tile_stride) {
  const int begin = place.first_step(a);
  const int end = place.end_step(a);
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const uint32_t turn = ring.base + T::kStages * T::kStageBytes + warpgroup * 2 * T::kTurnBytes;
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
    const int first_col = kGateUp ? first_weight / 2 : first_weight;
    float bias[T::kBlocks][2] = {};
    if (!kGateUp && a.bias != nullptr) {
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
    finish_parts<T, kGateUp, 0>(sums, a, ring.base, turn, place, warpgroup, first_col, place.first_token(a, tile),
                                bias);
  }
}

template <class T, bool kGateUp>
__global__ void __launch_bounds__(T::kThreads, 1)
    tile_kernel(const __grid_constant__ CUtensorMap weights, const __grid_constant__ CUtensorMap tokens, TileArgs a) {
#ifdef TENDON_HOPPER
  extern __shared__ unsigned char dynamic[];
  Ring<T> ring{(shared_address(dynamic) + 1023) & ~1023U};
  if (threadIdx.x == 0) {
    prefetch_map(&weights);
    prefetch_map(&tokens);
    Ring<T> each = ring;
    for (int s = 0; s < T::kStages; ++s, each.next()) {
      barrier_init(each.full(), 1);
      barrier_init(each.empty(), T::kWarpgroups * 4 * (T::kClusterTokens + T::kClusterWeights - 1));
    }
    if constexpr (T::kParts > 1) barrier_init(each.sent(), 1);
    barrier_init_done();
  }
  block_sync();
  if constexpr (T::kCluster > 1) {
    cluster_meet();
  }
  const Place<T> place(T::kCluster > 1 ? cluster_rank() : 0);
  if (T::kParts > 1 && threadIdx.x == 0) arrive_expecting(ring.sent(), place.bytes_sent());
  const int first_tile = static_cast<int>(blockIdx.x) / T::kCluster;
  const int tile_stride = static_cast<int>(gridDim.x) / T::kCluster;
  const int warpgroup = static_cast<int>(threadIdx.x) / 128 - 1;
  if (warpgroup < 0) {
    if constexpr (T::kWarpgroups > 1) give_registers<(T::kWarpgroups > 2 ? 32 : 24)>();
    if (threadIdx.x == 0) feed<T, kGateUp>(ring, &weights, &tokens, a, place, first_tile, tile_stride);
    __syncwarp();
    if constexpr (T::kParts > 1) cluster_meet();
  } else {
    if constexpr (T::kWarpgroups > 1) take_registers<(T::kWarpgroups > 2 ? 160 : 240)>();
    wait_for_producers();
    multiply<T, kGateUp>(ring, a, place, warpgroup, first_tile, tile_stride);
  }
  if constexpr (T::kCluster > 1 && T::kParts == 1) {  // others still copy into this block, or arrive at its barriers
    cluster_meet();
  }
#endif
}

}  // namespace tendon::gpu::hopper
