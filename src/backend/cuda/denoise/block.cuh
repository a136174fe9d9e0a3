// One block of the persistent denoise kernel: its shared memory, its place in the grid, and the means by which stages
// take chunks from the ring, read what other blocks produce, and add up sums of warps.
//
// Blocks hand each other data without barriers: memory that is still to be written holds kEmpty in every word, and a
// reader polls the data itself until no word is empty any more. No number that is written has these bits: conversions
// and arithmetic make only the canonical not-a-numbers, 0x7fff and 0x7fffffff.
#pragma once

#include "backend/cuda/denoise/args.h"
#include "backend/cuda/denoise/layout.h"
#include "backend/cuda/device/hopper.cuh"

namespace tendon::gpu::denoise {

using namespace hopper;

constexpr uint32_t kEmpty = 0xffffffffU;
constexpr int kQuads = kMaxRows / 4;

struct SharedLayout {
  static constexpr int kSlots = 22;  // even: two lanes of the producer take turns
  static constexpr uint32_t kRing = 0;
  static constexpr uint32_t kSumsWide = kRing + kSlots * kChunkBytes;              // [warp][64 columns][rows] f32
  static constexpr uint32_t kSumsNarrow = kSumsWide + kWarps * 64 * kMaxRows * 4;  // [warp][16][rows], or scores
  static constexpr int kScoreRow = 18;                                             // floats; scores [2][64 keys][18]
  static constexpr uint32_t kProbabilities = kSumsNarrow + 2 * kPartKeys * kScoreRow * 4;
  static constexpr int kProbabilityRow = 144;                                     // bytes: 64 bf16, padded
  static constexpr uint32_t kSquares = kProbabilities + kRows * kProbabilityRow;  // [warp][row] f32
  static constexpr uint32_t kInverse = kSquares + kWarps * kRows * 4;             // [row] f32
  static constexpr uint32_t kReceived = kInverse + kRows * 4;                     // [o, down][8][rows] f32
  static constexpr uint32_t kGains = kReceived + 2 * 8 * kMaxRows * 4;            // [input, post][1024] bf16
  static constexpr uint32_t kTokens = kGains + 2 * kWidth * 2;                    // [row][8] f32
  // Barriers: received o, received down, gains of both norms, then full and empty of every slot.
  static constexpr uint32_t kBarriers = kTokens + kMaxRows * 8 * 4;
  static constexpr uint32_t kGainBarriers = kBarriers + 16;
  static constexpr uint32_t kFull = kBarriers + 32;
  static constexpr uint32_t kFree = kFull + kSlots * 8;
  static constexpr uint32_t kBytes = kFree + kSlots * 8;
  static_assert(kSumsNarrow % 16 == 0 && kGains % 16 == 0 && kBarriers % 8 == 0 && kBytes <= 232448);
  // A stage never waits for more chunks at once than the ring has slots.
  static_assert(kGateUpChunks <= kSlots && kKvChunks + kQkvChunks <= kSlots);
};

TENDON_DEVICE bool has_empty(const uint4& v) {
  return v.x == kEmpty || v.y == kEmpty || v.z == kEmpty || v.w == kEmpty;
}

// Reads v[i] from pointer(i) where valid(i), until nothing of it is empty; zeros elsewhere. Missing vectors are read
// again all at once.
template <int N, class Pointer, class Valid>
TENDON_DEVICE void await(uint4 (&v)[N], Pointer pointer, Valid valid) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    v[i] = valid(i) ? make_uint4(kEmpty, kEmpty, kEmpty, kEmpty) : make_uint4(0, 0, 0, 0);
  }
  Patience patience;
  bool missing;
  do {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (has_empty(v[i])) v[i] = load_relaxed_16(pointer(i));
    }
    missing = false;
#pragma unroll
    for (int i = 0; i < N; ++i) missing |= has_empty(v[i]);
    if (missing) patience.lose();
  } while (missing);
}

// The threads that compute, without the producer's warp.
TENDON_DEVICE void compute_sync() { named_barrier(1, kThreads); }

// Makes a part of the exchange memory empty, all blocks together.
TENDON_DEVICE void make_empty(unsigned char* memory, size_t bytes, int block, int thread) {
  for (size_t at = (size_t{static_cast<unsigned>(block)} * kThreads + thread) * 16; at < bytes;
       at += size_t{kBlocks} * kThreads * 16) {
    store_relaxed_16(memory + at, make_uint4(kEmpty, kEmpty, kEmpty, kEmpty));
  }
}

// A thread's place, and what all stages share.
struct Block {
  const LoopArgs& args;
  uint32_t shared;
  int thread, warp, lane, group, quad, block, half;  // half: which of the pair
  uint32_t layer_parity = 0;                         // of barriers used once a layer
  float residual = 0.0F;                             // of the element that this thread owns, as residual() numbers them

  TENDON_DEVICE Block(const LoopArgs& loop_args, uint32_t shared_memory) : args(loop_args), shared(shared_memory) {
    thread = static_cast<int>(threadIdx.x);
    warp = thread >> 5;
    lane = thread & 31;
    group = lane >> 2;
    quad = lane & 3;
    block = static_cast<int>(blockIdx.x);
    half = block & 1;
  }
  // Keeps the compiler from carrying addresses of one stage in registers through the others.
  TENDON_DEVICE void forget() {
    asm volatile("" : "+r"(thread), "+r"(warp), "+r"(lane), "+r"(group), "+r"(quad), "+r"(block), "+r"(half));
  }

  // --- the ring: chunk numbers count from the start of the launch
  TENDON_DEVICE uint32_t chunk(uint32_t number) const {
    const uint32_t round = number / SharedLayout::kSlots;
    const uint32_t slot = number - round * SharedLayout::kSlots;
    barrier_wait(shared + SharedLayout::kFull + 8 * slot, round & 1);
    return shared + SharedLayout::kRing + slot * kChunkBytes;
  }
  // This warp has read `fragments` of the chunk's 16; the slot is free when all are.
  TENDON_DEVICE void release(uint32_t number, int fragments) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(shared + SharedLayout::kFree + 8 * (number % SharedLayout::kSlots), fragments);
  }

  // --- sums of the warps
  // 16 columns from `column` on of this warp's sums, rows of kMaxRows; `high`: columns 8–15 too.
  TENDON_DEVICE void put_sums(uint32_t base, int column, const float (&sums)[2][4], bool high) const {
    const uint32_t at = base + (column + group) * (kMaxRows * 4) + quad * 8;
    store_shared_floats(at, sums[0][0], sums[0][1]);
    if (quad < 2) store_shared_floats(at + 32, sums[1][0], sums[1][1]);
    if (!high) return;
    store_shared_floats(at + 8 * kMaxRows * 4, sums[0][2], sums[0][3]);
    if (quad < 2) store_shared_floats(at + 8 * kMaxRows * 4 + 32, sums[1][2], sums[1][3]);
  }
  // The sum over the warps of one column and row: lanes 8 apart share a column and four rows, each adds up two warps
  // and ends with row 4 · rows4 + lane / 8.
  TENDON_DEVICE float sum_of_warps(uint32_t base, int warp_stride, int column, int rows4) const {
    const int part = lane >> 3;
    float v[4] = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint4 t = load_shared_16(base + (part * 2 + k) * warp_stride + (column * kMaxRows + rows4 * 4) * 4);
      v[0] += __uint_as_float(t.x);
      v[1] += __uint_as_float(t.y);
      v[2] += __uint_as_float(t.z);
      v[3] += __uint_as_float(t.w);
    }
    const bool upper = (part & 2) != 0;
    const bool odd = (part & 1) != 0;
    const float a = shuffle_xor(upper ? v[0] : v[2], 16);
    const float b = shuffle_xor(upper ? v[1] : v[3], 16);
    const float x = (upper ? v[2] : v[0]) + a;
    const float y = (upper ? v[3] : v[1]) + b;
    const float c = shuffle_xor(odd ? x : y, 8);
    return (odd ? y : x) + c;
  }

  // --- the residual stream: block b owns columns 8b..8b+7; within the pair's 16 columns a thread has one element
  struct Own {
    int column, row, rows4;  // column within the pair's 16
    bool in_tile, mine;
  };
  TENDON_DEVICE Own own() const {
    const int item = warp * 8 + (lane & 7);
    const int rows4 = (item >> 1) % kQuads;
    const int column = 2 * ((item >> 1) / kQuads) + (item & 1);
    const bool in_tile = column < 16;
    return {column, rows4 * 4 + (lane >> 3), rows4, in_tile, in_tile && column / 8 == half};
  }

  // --- activations of this warp's part of the depth, as mma B operands
  // Eight columns a lane from eight-column block `first` + 4p + quad, for rows group and group + 8.
  template <int kPairs>
  TENDON_DEVICE void load_rows(uint4 (&b)[kPairs * 2], const unsigned char* from, int first) const {
    await(
        b,
        [&](int i) {
          return from + (size_t{static_cast<unsigned>(first + 4 * (i >> 1) + quad)} * kRows + 8 * (i & 1) + group) * 16;
        },
        [&](int i) { return 8 * (i & 1) + group < args.rows; });
  }
  // Multiplies by the norm's gains and leaves the sum of squares of the warp's columns in shared memory.
  template <int kPairs>
  TENDON_DEVICE void apply_gain(uint4 (&b)[kPairs * 2], int first, uint32_t gains) const {
    float squares[2] = {0.0F, 0.0F};
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const uint4 gain = load_shared_16(gains + (first + 4 * p + quad) * 16);
      const uint32_t g[4] = {gain.x, gain.y, gain.z, gain.w};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint4& v = b[2 * p + j];
        uint32_t x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float low = low_bf16(x[k]);
          const float high = high_bf16(x[k]);
          squares[j] = fmaf(low, low, squares[j]);
          squares[j] = fmaf(high, high, squares[j]);
          x[k] = multiply_bf16_pair(x[k], g[k]);
        }
        v = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      squares[j] += shuffle_xor(squares[j], 1);
      squares[j] += shuffle_xor(squares[j], 2);
    }
    if (quad == 0) {
      store_shared_float(shared + SharedLayout::kSquares + (warp * kRows + group) * 4, squares[0]);
      store_shared_float(shared + SharedLayout::kSquares + (warp * kRows + 8 + group) * 4, squares[1]);
    }
  }
  // 1 / √(mean square + ε) of a row, behind the barrier that follows apply_gain.
  TENDON_DEVICE float inverse_norm(int row) const {
    float sum = 0.0F;
#pragma unroll
    for (int k = 0; k < kWarps; ++k) sum += load_shared_float(shared + SharedLayout::kSquares + (k * kRows + row) * 4);
    return rsqrtf(sum * (1.0F / kWidth) + args.eps);
  }
};

// Operand k step `step` of a pair of k steps' activations, rows 0–7 (j = 0) or 8–15.
template <int N>
TENDON_DEVICE void mma_step(float (&sums)[4], const uint4& weights, const uint4 (&b)[N], int step, int j) {
  const uint4& v = b[(step >> 1) * 2 + j];
  mma(sums, weights, (step & 1) != 0 ? v.z : v.x, (step & 1) != 0 ? v.w : v.y);
}

// Where eight-column block `column8` of a row lies; `pair` its pair of columns.
TENDON_DEVICE unsigned char* activation_word(unsigned char* base, int column8, int row, int pair) {
  return base + ((size_t{static_cast<unsigned>(column8)} * kRows + row) * 4 + pair) * 4;
}

}  // namespace tendon::gpu::denoise
