// A tile of products on wgmma: its shape, where a block stands in its cluster, the ring of stages in shared memory and
// the thread that feeds it. tile.cuh has the whole.
#pragma once

#include <type_traits>

#include "backend/cuda/hopper/copies.cuh"
#include "backend/cuda/hopper/tiles.h"
#include "backend/cuda/hopper/wgmma.cuh"

namespace tendon::gpu::hopper {

constexpr int kRowBytes = 128;
constexpr int kSharedLimit = 232448;
constexpr int kChunkGroups = 4;  // of eight tokens: what the epilogue turns at once

template <int kWarpgroups_, int kBlocks_, int kTokens_, int kStages_, int kClusterWeights_ = 1, int kClusterTokens_ = 1,
          int kParts_ = 1, class Operand_ = Bf16>
struct WgmmaTile {
  // What is multiplied. Copies move 128 bytes along K at a time, whatever they hold.
  using Operand = Operand_;
  static constexpr bool kScaled = sizeof(Operand) == 1;
  using Sum = std::conditional_t<std::is_same_v<Operand, int8_t>, int32_t, float>;
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
  // Sums of e4m3 products lose bits along K, which is mended where there are registers for it.
  static constexpr bool kWidens = std::is_same_v<Operand, E4m3> && 8 * kBlocks * kGroups <= 208;
  static constexpr int kMultipliers = 128 * kWarpgroups;
  static constexpr int kStageBytes = (kWeights + kTokens) * kRowBytes;
  static constexpr int kMostGroups = (kGroups + kParts - 1) / kParts;
  static constexpr int kPartBytes = (kParts - 1) * kMostGroups * kBlocks * kMultipliers * 16;  // sums of other parts
  template <int kPart>
  static constexpr int kBegin = kPart* kGroups / kParts;  // the first group of tokens that a part finishes
  static_assert(kTokens % 8 == 0 && kTokens <= 256);
  static_assert(kWeights / kClusterTokens <= 256 && kWeights % (16 * kClusterTokens) == 0);
  static_assert(kTokens % (8 * kClusterWeights) == 0);
};

// A tile with what follows its products. A block's finished columns are gathered in shared memory, from where they
// leave by TMA: in stages, one or two more steps of the ring, into which the residual is copied before. Gate and up and
// rotated heads take a way of their own, through two buffers of each warpgroup.
// Result: bf16, or the operands' codes with static scales.
template <class Shape, Tail kTail_, class Result_ = Bf16>
struct TailedTile : Shape {
  static constexpr Tail kTail = kTail_;
  using Result = Result_;
  static constexpr bool kMakesCodes = sizeof(Result) == 1;
  static_assert(!kMakesCodes || (std::is_same_v<Result, typename Shape::Operand> && Shape::kParts == 1 &&
                                 (kTail == Tail::kGelu || kTail == Tail::kGateUp)));
  // A thread's two weight rows in a block are neighbours, not eight apart: two columns' codes are a 16-bit word, which
  // is turned like a bf16 number (the copy interleaves the rows).
  static constexpr bool kPairsColumns = kMakesCodes && kTail == Tail::kGelu;
  // Of gate and up, it has neighbours in its two blocks.
  static constexpr bool kPairsBlocks = kMakesCodes && kTail == Tail::kGateUp;
  static constexpr bool kGathers = kTail == Tail::kPlain || kTail == Tail::kTable || kTail == Tail::kGelu;
  // Sums are added up in f32 stage by stage: where the tensor cores lose bits along K, and on the rows of a table,
  // which would cost every step of them bits.
  static constexpr bool kAddsUp = Shape::kWidens || kTail == Tail::kTable;
  // A warp copies; where multiplying needs more registers than an equal share, a warpgroup, which can give them up.
  static constexpr int kKept = 4 * Shape::kBlocks * Shape::kGroups * (kAddsUp ? 2 : 1);  // numbers of a thread
  static constexpr bool kShiftsRegisters = kKept > (kTail != Tail::kRope ? 128 : Shape::kScaled ? 0 : 72);
  static constexpr int kThreads = Shape::kMultipliers + (kShiftsRegisters ? 128 : 32);
  static constexpr int kStrips = Shape::kWarpgroups * Shape::kBlocks;  // of 64 columns
  // Parts of unlike size leave by eight tokens at a time.
  static constexpr int kBoxTokens = Shape::kGroups % Shape::kParts == 0 ? Shape::kTokens / Shape::kParts : 8;
  static constexpr int kStripRowBytes = 64 * sizeof(Result);
  static constexpr int kStripBytes = 8 * Shape::kMostGroups * kStripRowBytes;
  static constexpr int kStripsOfStage = Shape::kParts > 1 ? kStrips : Shape::kStageBytes / kStripBytes;
  static constexpr int kMoreSteps = kGathers ? (kStrips + kStripsOfStage - 1) / kStripsOfStage : 0;
  static constexpr int kTurnBytes = kChunkGroups * 8 * kRowBytes;  // of one of a warpgroup's two buffers
  // A warpgroup's part of what lies behind the stages: buffers, scales of tokens.
  static constexpr int kBufferBytes = kGathers ? 0 : 2 * kTurnBytes;
  static constexpr int kScaleBytes = Shape::kScaled ? 4 * Shape::kTokens : 0;
  static constexpr int kTailBytes = Shape::kWarpgroups * (kBufferBytes + kScaleBytes);
  static constexpr int kSharedBytes =
      Shape::kStages * Shape::kStageBytes + kTailBytes + (2 * Shape::kStages + 1) * 8 + 1024;
  static_assert(kSharedBytes <= kSharedLimit);
  static_assert(kMoreSteps <= Shape::kStages);
  static_assert(Shape::kPartBytes + (Shape::kParts > 1 ? kStrips * kStripBytes : 0) <=
                Shape::kStages * Shape::kStageBytes);
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
  TENDON_DEVICE uint32_t barriers() const { return base + T::kStages * T::kStageBytes + T::kTailBytes; }
  TENDON_DEVICE uint32_t full() const { return barriers() + stage * 8; }
  TENDON_DEVICE uint32_t empty() const { return barriers() + (T::kStages + stage) * 8; }
  // A warpgroup's own: two buffers, the scales of a tile's tokens.
  TENDON_DEVICE uint32_t turn(int warpgroup) const {
    return base + T::kStages * T::kStageBytes + warpgroup * (T::kTailBytes / T::kWarpgroups);
  }
  // Where 64 columns are gathered, at the step for them; behind the sums of other parts, which lie in the stages.
  TENDON_DEVICE uint32_t strip(int index) const {
    return base + (T::kParts > 1 ? T::kPartBytes : stage * T::kStageBytes) + index % T::kStripsOfStage * T::kStripBytes;
  }
  // Where this thread's sums of other parts lie, in place of the stages.
  TENDON_DEVICE uint32_t part_sums(int slot) const {
    return base + (slot * T::kBlocks * T::kMostGroups * T::kMultipliers + static_cast<int>(threadIdx.x)) * 16;
  }
  // Of the sums that other parts send; used once.
  TENDON_DEVICE uint32_t sent() const { return barriers() + 2 * T::kStages * 8; }
  TENDON_DEVICE void next() {
    if (++stage == T::kStages) stage = 0, phase ^= 1;
  }
};

// This block's share of what the cluster needs at one step, to all that need it.
// Of a block's 64 columns from `first` on, the thread's, in h = 0, 1; `warp` of its warpgroup.
template <class T>
TENDON_DEVICE int column_of(int first, int warp, int h) {
  return T::kPairsColumns ? first + warp * 16 + lane() / 4 * 2 + h : first + warp * 16 + h * 8 + lane() / 4;
}

template <class T>
TENDON_DEVICE void copy_weights(const Ring<T>& ring, const CUtensorMap* map, const TileArgs& a, const Place<T>& place,
                                int first, int step) {
  constexpr int kShare = T::kWeights / T::kClusterTokens;
  const auto blocks = static_cast<uint16_t>(((1 << T::kClusterTokens) - 1) << place.rank(place.weights, 0));
  const uint32_t to = ring.weights() + place.tokens * kShare * kRowBytes;
  first += place.tokens * kShare;
  if constexpr (T::kPairsBlocks) {
#pragma unroll
    for (int row = 0; row < kShare; row += 64 * T::kBlocks) {
      copy_box<(T::kClusterTokens > 1)>(to + row * kRowBytes, map, ring.full(), blocks, step * kDepth, 0, 0,
                                        (first + row) / 32, 0);
    }
  } else if constexpr (T::kTail == Tail::kGateUp || T::kPairsColumns) {
    copy_box<(T::kClusterTokens > 1)>(to, map, ring.full(), blocks, step * kDepth, 0, 0, first / 16);
  } else if constexpr (T::kTail == Tail::kRope) {
    const int head = first / (2 * a.rope.half);
    copy_box<(T::kClusterTokens > 1)>(to, map, ring.full(), blocks, step * kDepth, 0, 0,
                                      (first - head * 2 * a.rope.half) / 16, head);
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

// What a block adds to its tile, where its columns are gathered.
template <class T>
TENDON_DEVICE void copy_residual(const Ring<T>& ring, const CUtensorMap* map, const TileArgs& a, int step,
                                 int first_weight, int first_token, int tokens) {
  const int first = step * T::kStripsOfStage;
  const int strips = min(T::kStripsOfStage, T::kStrips - first);
  barrier_expect(ring.full(), a.adds ? strips * tokens * kRowBytes : 0);
  if (!a.adds) return;
#pragma unroll 1
  for (int strip = first; strip < first + strips; ++strip) {
#pragma unroll 1
    for (int t = 0; t < tokens; t += T::kBoxTokens) {
      copy_box<false>(ring.strip(strip) + t * kRowBytes, map, ring.full(), 0, first_weight + strip * 64,
                      first_token + t);
    }
  }
}

// One thread feeds the ring. Weights are no other kernel's results: the first are on their way before the kernels in
// front have ended. Returns for how many steps.
template <class T>
TENDON_DEVICE int feed_early(Ring<T> ring, const TileMaps& maps, const TileArgs& a, const Place<T>& place,
                             int first_tile) {
  const int begin = place.first_step(a);
  const int early = min(place.end_step(a) - begin, T::kStages);
  const int first = place.first_weight(a, first_tile);
#pragma unroll 1
  for (int i = 0; i < early; ++i, ring.next()) {
    barrier_expect(ring.full(), T::kStageBytes);
    copy_weights(ring, &maps.weights, a, place, first, begin + i);
  }
  return early;
}
// Returns where the ring stands.
template <class T>
TENDON_DEVICE Ring<T> feed(Ring<T> ring, const TileMaps& maps, const TileArgs& a, const Place<T>& place, int first_tile,
                           int tile_stride, int early) {
  const int begin = place.first_step(a);
  const int end = place.end_step(a);
  for (int tile = first_tile; tile < a.tiles; tile += tile_stride) {
    const int first_weight = place.first_weight(a, tile);
    const int first_token = place.first_token(a, tile);
#pragma unroll 1
    for (int step = begin; step < end; ++step, ring.next()) {
      if (early > 0) {
        --early;
      } else {
        wait_phase(ring.empty(), ring.phase ^ 1);
        barrier_expect(ring.full(), T::kStageBytes);
        copy_weights(ring, &maps.weights, a, place, first_weight, step);
      }
      copy_tokens<T>(ring, &maps.tokens, place, first_token, step);
    }
    if constexpr (T::kParts == 1) {
#pragma unroll 1
      for (int step = 0; step < T::kMoreSteps; ++step, ring.next()) {
        wait_phase(ring.empty(), ring.phase ^ 1);
        copy_residual(ring, &maps.residual, a, step, first_weight, first_token, T::kTokens);
      }
    }
  }
  return ring;
}

}  // namespace tendon::gpu::hopper
