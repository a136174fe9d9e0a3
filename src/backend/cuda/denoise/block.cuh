// One block of the persistent denoise kernel: its shared memory, its place in the grid, and the means by which stages
// take chunks from the ring, read what other blocks produce, and add up sums of warps.
#pragma once

#include "backend/cuda/denoise/args.h"
#include "backend/cuda/denoise/exchange.cuh"
#include "backend/cuda/denoise/layout.h"

namespace tendon::gpu::denoise {

constexpr int kQuads = kMaxRows / 4;

struct SharedLayout {
  static constexpr int kSlots = 24;  // even: two lanes of the producer take turns
  static constexpr uint32_t kRing = 0;
  static constexpr uint32_t kSumsWide = kRing + kSlots * kChunkBytes;              // [warp][64 columns][rows] f32
  static constexpr uint32_t kSumsNarrow = kSumsWide + kWarps * 64 * kMaxRows * 4;  // [warp][16][rows] f32
  static constexpr uint32_t kProbabilities = kSumsNarrow + kWarps * 16 * kMaxRows * 4;
  static constexpr int kProbabilityRow = 144;                                    // bytes: 64 bf16, padded
  static constexpr uint32_t kMaxima = kProbabilities + kRows * kProbabilityRow;  // [row][key tile] f32
  static constexpr uint32_t kTotals = kMaxima + kRows * kKeyTiles * 4;           // [row][key tile] f32
  static constexpr uint32_t kSquares = kTotals + kRows * kKeyTiles * 4;          // [row][warp] f32
  static constexpr uint32_t kReceived = kSquares + kRows * kWarps * 4;           // [o, down][8][rows] f32
  static constexpr uint32_t kTokens = kReceived + 2 * 8 * kMaxRows * 4;          // [row][8] f32
  // Barriers: received o, received down, then full and free of every slot.
  static constexpr uint32_t kBarriers = kTokens + kMaxRows * 8 * 4;
  static constexpr uint32_t kFull = kBarriers + 16;
  static constexpr uint32_t kFree = kFull + kSlots * 8;
  static constexpr uint32_t kBytes = kFree + kSlots * 8;
  static_assert(kProbabilities % 16 == 0 && kMaxima % 16 == 0 && kSquares % 16 == 0 && kBarriers % 8 == 0 &&
                kBytes <= 232448);
  // A stage never waits for more chunks at once than the ring has slots.
  static_assert(kGateUpChunks <= kSlots && kKvChunks + kQkvChunks <= kSlots);
};

// Where eight-column block `column8` of a row lies; `pair` its pair of columns.
TENDON_DEVICE unsigned char* activation_word(unsigned char* base, int column8, int row, int pair) {
  return base + static_cast<uint32_t>((column8 * kRows + row) * 16 + pair * 4);
}

// A thread's place, and what all stages share.
struct Block {
  const LoopArgs& args;
  uint32_t shared;
  int thread, warp, lane, group, quad, block, half;  // half: which of the pair
  uint32_t layer_parity = 0;                         // of barriers used once a layer
  float residual = 0.0F;                             // of the element that own() says
  int cached_keys;
  int low_row, high_row;  // group and group + 8, or the last row: what stands in for missing ones is not used
  float cosine = 1.0F, sine = 0.0F;  // by which qkv_item() is rotated

  TENDON_DEVICE Block(const LoopArgs& loop_args, uint32_t shared_memory) : args(loop_args), shared(shared_memory) {
    thread = static_cast<int>(threadIdx.x);
    warp = thread >> 5;
    lane = thread & 31;
    group = lane >> 2;
    quad = lane & 3;
    block = static_cast<int>(blockIdx.x);
    half = block & 1;
    low_row = min(group, args.rows - 1);
    high_row = min(group + 8, args.rows - 1);
    cached_keys = load_constant(args.cached_keys);
    const QkvItem at = qkv_item();
    if (at.valid() && !at.is_v() && at.row < args.rows) {
      const float* const angles =
          args.rope + int64_t{load_constant(args.positions + at.row)} * kHeadDim + at.dim + (at.member & 1);
      cosine = load_constant(angles);
      sine = load_constant(angles + kHalfDim);
    }
  }
  // Keeps the compiler from carrying addresses of one stage in registers through the others.
  TENDON_DEVICE void forget() {
    asm volatile(""
                 : "+r"(thread), "+r"(warp), "+r"(lane), "+r"(group), "+r"(quad), "+r"(block), "+r"(half),
                   "+r"(low_row), "+r"(high_row));
  }

  // Between two stages, and between the parts of one that exchange.
  TENDON_DEVICE void next_stage(unsigned char* exchange) {
    forget();
    if constexpr (kMeets) meet(exchange + Exchange::kArrivals, thread);
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

  // --- q, k and v: block b has units 5b..5b+4 of four columns (layout.h); a thread has one of them in one row
  struct QkvItem {
    int member, rows4, row;
    int unit_of_block, head, dim;  // head: 0–7 of q, then k, then v; dim: of the unit's first column
    TENDON_DEVICE bool is_v() const { return head > kHeads; }
    TENDON_DEVICE bool valid() const { return unit_of_block < kQkvChunks; }
    TENDON_DEVICE int column() const { return dim + (member & 1) + (member >> 1) * kHalfDim; }  // of the head
  };
  TENDON_DEVICE QkvItem qkv_item() const {
    const int item = warp * 8 + (lane & 7);
    const int rows4 = (item >> 2) % kQuads;
    const int unit_of_block = (item >> 2) / kQuads;
    const int unit = block * kQkvChunks + unit_of_block;
    return {item & 3, rows4, rows4 * 4 + (lane >> 3), unit_of_block, unit >> 6, 2 * (unit & 63)};
  }

  // --- gate and up: of the block's 32 hidden columns a thread of six warps has two, 16 apart, in one row
  struct HiddenItem {
    int column, row, rows4;  // column: the first
  };
  TENDON_DEVICE HiddenItem hidden_item() const {
    const int item = warp * 8 + (lane & 7);
    const int rows4 = (item >> 1) % kQuads;
    return {2 * ((item >> 1) / kQuads) + (item & 1), rows4 * 4 + (lane >> 3), rows4};
  }

  // --- the residual stream: block b owns columns 8b..8b+7. Of the pair's 16 columns and kMaxRows rows a thread of the
  // first warps has one: three warps the columns of one block, a warp four rows.
  struct Own {
    int column, row, rows4;  // column within the block's eight
    int half;                // whose of the pair
    bool mine;
  };
  TENDON_DEVICE Own own() const {
    const int of = warp / kQuads;
    const int rows4 = warp % kQuads;
    return {lane & 7, rows4 * 4 + (lane >> 3), rows4, of, of == half};
  }
  // Hands on the residual stream, times `gain` of this thread's column, with its squares. For whole warps that own.
  TENDON_DEVICE void publish(const Own& at, float gain, unsigned char* stream) const {
    const float scaled = residual * gain;
    const float next = shuffle_xor(scaled, 1);
    float squares = residual * residual;
#pragma unroll
    for (int mask = 1; mask <= 4; mask *= 2) squares += shuffle_xor(squares, mask);
    if (at.row < args.rows && (at.column & 1) == 0) {
      store_relaxed_4(activation_word(stream, block, at.row, at.column >> 1), pack_bf16(scaled, next));
    }
    const float next_row = shuffle_xor(squares, 8);
    // Readers take all of kRows: zeros behind the last.
    if ((at.row & 1) == 0 && (at.column == 0 || (at.column == 1 && at.row >= kRows - 8))) {
      const int row = at.row + (kRows - kMaxRows) * at.column;
      store_relaxed_4(stream + Exchange::kSquares + (block * kRows + row) * 2,
                      at.column == 0 ? pack_bf16(squares, next_row) : 0);
    }
  }

  // --- activations of this warp's part of the depth, as mma B operands
  // Eight columns a lane from eight-column block `first` + 4p + quad, for rows group and group + 8.
  template <int kPairs>
  TENDON_DEVICE void load_rows(uint4 (&b)[kPairs * 2], const unsigned char* from, int first) const {
    await(b, [&](int i) {
      return from + static_cast<uint32_t>(((first + quad) * kRows + ((i & 1) != 0 ? high_row : low_row)) * 16) +
             (i >> 1) * (4 * kRows * 16);
    });
  }
  // The same of the residual stream, 128 columns a warp; the sums of their squares go to shared memory.
  TENDON_DEVICE void load_stream(uint4 (&b)[8], const unsigned char* stream) const {
    uint4 all[9];
    await(all, [&](int i) {
      if (i < 8) {
        return stream + static_cast<uint32_t>(((warp * 16 + quad) * kRows + ((i & 1) != 0 ? high_row : low_row)) * 16) +
               (i >> 1) * (4 * kRows * 16);
      }
      return stream +
             static_cast<uint32_t>(Exchange::kSquares + ((warp * 16 + (lane >> 1)) * kRows + 8 * (lane & 1)) * 2);
    });
#pragma unroll
    for (int i = 0; i < 8; ++i) b[i] = all[i];
    const uint32_t words[4] = {all[8].x, all[8].y, all[8].z, all[8].w};
    float eight[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) eight[2 * i] = low_bf16(words[i]), eight[2 * i + 1] = high_bf16(words[i]);
    // Lanes 16, 8 and 4 apart share out the rows.
    const bool up16 = (lane & 16) != 0;
    const bool up8 = (lane & 8) != 0;
    const bool up4 = (lane & 4) != 0;
    float four[4];
    float two[2];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      four[i] = (up16 ? eight[4 + i] : eight[i]) + shuffle_xor(up16 ? eight[i] : eight[4 + i], 16);
#pragma unroll
    for (int i = 0; i < 2; ++i) two[i] = (up8 ? four[2 + i] : four[i]) + shuffle_xor(up8 ? four[i] : four[2 + i], 8);
    float one = (up4 ? two[1] : two[0]) + shuffle_xor(up4 ? two[0] : two[1], 4);
    one += shuffle_xor(one, 2);
    if ((lane & 2) == 0) {
      const int row = 8 * (lane & 1) + 4 * (lane >> 4) + 2 * ((lane >> 3) & 1) + ((lane >> 2) & 1);
      store_shared_float(shared + SharedLayout::kSquares + (row * kWarps + warp) * 4, one);
    }
  }
  // 1 / √(mean square + ε) of a row, behind the barrier that follows load_stream.
  TENDON_DEVICE float inverse_norm(int row) const {
    const uint4 a = load_shared_16(shared + SharedLayout::kSquares + row * kWarps * 4);
    const uint4 b = load_shared_16(shared + SharedLayout::kSquares + row * kWarps * 4 + 16);
    const float sum = ((__uint_as_float(a.x) + __uint_as_float(a.y)) + (__uint_as_float(a.z) + __uint_as_float(a.w))) +
                      ((__uint_as_float(b.x) + __uint_as_float(b.y)) + (__uint_as_float(b.z) + __uint_as_float(b.w)));
    return rsqrtf(sum * (1.0F / kWidth) + args.eps);
  }
};

// One k step; `activations` holds a pair of them.
TENDON_DEVICE void mma_step(float (&sums)[4], const uint4& weights, const uint4& activations, int step) {
  mma(sums, weights, (step & 1) != 0 ? activations.z : activations.x, (step & 1) != 0 ? activations.w : activations.y);
}

}  // namespace tendon::gpu::denoise
