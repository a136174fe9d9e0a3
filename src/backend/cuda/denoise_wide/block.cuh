// One block of the persistent denoise kernel for many rows: its shared memory, its place in the grid, and the means by
// which stages take chunks from the ring, bring activations in, multiply, and hand on the residual stream.
#pragma once

#include "backend/cuda/denoise/args.h"
#include "backend/cuda/denoise/exchange.cuh"
#include "backend/cuda/denoise_wide/layout.h"
#include "backend/cuda/hopper/copies.cuh"
#include "backend/cuda/hopper/wgmma.cuh"

namespace tendon::gpu::denoise::wide {

constexpr int kGroupThreads = 128;  // of a warpgroup; there are two

// Activations come into shared memory in pieces of 256 columns; a piece is multiplied while the next one comes.
constexpr int kPieceColumns = 256, kStreamPieces = kWidth / kPieceColumns;
constexpr int kPieceUnits = kPieceColumns / 8 * kRows / kThreads;  // a thread
constexpr uint32_t kPieceBytes = kPieceColumns / 8 * static_cast<uint32_t>(Exchange::kActivation);
static_assert(kPieceUnits * kThreads * kUnitBytes == kPieceBytes);

struct SharedLayout {
  static constexpr int kSlots = 18;  // even: two lanes of the producer take turns
  static constexpr uint32_t kRing = 0;
  // Activations as in the exchange memory, two pieces. Products read 64 rows of them: eight units past the end.
  static constexpr uint32_t kActivations = kRing + kSlots * kChunkBytes;
  static constexpr uint32_t kActivationEnd = kActivations + 2 * kPieceBytes;
  static constexpr uint32_t kTrade = kActivationEnd + 8 * kUnitBytes;        // [warpgroup][16][thread] f32
  static constexpr uint32_t kInverse = kTrade + 2 * 16 * kGroupThreads * 4;  // [row] f32: 1 / norm
  static constexpr uint32_t kFull = kInverse + kRows * 4;
  static constexpr uint32_t kFree = kFull + kSlots * 8;
  static constexpr uint32_t kBytes = kFree + kSlots * 8;
  static_assert(kTrade % 16 == 0 && kFull % 8 == 0 && kBytes <= 232448);
  // A stage never waits for more chunks at once than the ring has slots.
  static_assert(2 * kGateUpChunks / kStreamPieces <= kSlots && kKvChunks <= kSlots);
};

// A matrix in units of eight elements along the depth: bytes from unit to unit along the depth; rows follow each other.
TENDON_DEVICE uint64_t unit_rows(uint32_t address, uint32_t depth_stride) {
  return uint64_t{8 * kUnitBytes >> 4} << 32 | uint64_t{depth_stride >> 4} << 16 | (address & 0x3ffff) >> 4;
}
constexpr uint32_t kActivationStride = static_cast<uint32_t>(Exchange::kActivation);

// What ordinary instructions wrote to shared memory becomes visible to wgmma; then all threads that compute meet.
TENDON_DEVICE void shared_ready() {
  shared_written();
  compute_sync();
}

TENDON_DEVICE void store_shared_16(uint32_t a, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(a), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// Where eight-column block `column8` of a row lies.
TENDON_DEVICE unsigned char* activation(unsigned char* base, int column8, int row) {
  return base + (static_cast<unsigned>(column8) * kRows + static_cast<unsigned>(row)) * kUnitBytes;
}
TENDON_DEVICE const unsigned char* activation(const unsigned char* base, int column8, int row) {
  return base + (static_cast<unsigned>(column8) * kRows + static_cast<unsigned>(row)) * kUnitBytes;
}

// A thread's place, and what all stages share.
struct Block {
  const LoopArgs& args;
  uint32_t shared;
  int thread, lane, group, quad, block;
  int side;     // warpgroup
  int quarter;  // warp of the warpgroup
  // The residual stream: block (tile, row group) owns 64 columns of seven rows, warp w < 7 row w. Both lanes of a pair
  // have the same four columns.
  float residual[4] = {};

  TENDON_DEVICE Block(const LoopArgs& loop_args, uint32_t shared_memory) : args(loop_args), shared(shared_memory) {
    thread = static_cast<int>(threadIdx.x);
    lane = thread & 31;
    group = lane >> 2;
    quad = lane & 3;
    block = static_cast<int>(blockIdx.x);
    // The same in all lanes, and known to be.
    side = __shfl_sync(~0U, thread >> 7, 0);
    quarter = __shfl_sync(~0U, thread >> 5, 0) & 3;
  }
  TENDON_DEVICE int warp() const { return side * 4 + quarter; }
  TENDON_DEVICE int tile() const { return block / kRowGroups; }
  TENDON_DEVICE int split() const { return block % kSplits; }
  TENDON_DEVICE uint32_t activations() const { return shared + SharedLayout::kActivations; }
  // Keeps the compiler from carrying addresses of one stage in registers through the others.
  TENDON_DEVICE void forget() { asm volatile("" : "+r"(thread), "+r"(lane), "+r"(group), "+r"(quad), "+r"(block)); }
  // Between two stages, and between the parts of one that exchange.
  TENDON_DEVICE void next_stage(unsigned char* exchange) {
    forget();
    if constexpr (kMeets) meet(exchange + Exchange::kArrivals, thread);
  }

  // --- the ring: chunk numbers count from the start of the launch
  TENDON_DEVICE uint32_t slot(uint32_t number) const { return number % SharedLayout::kSlots; }
  TENDON_DEVICE uint32_t chunk(uint32_t number) const {
    const uint32_t round = number / SharedLayout::kSlots;
    barrier_wait(shared + SharedLayout::kFull + 8 * slot(number), round & 1);
    return shared + SharedLayout::kRing + slot(number) * kChunkBytes;
  }
  // This warpgroup's products of the chunks have ended.
  TENDON_DEVICE void release(uint32_t first, int count) const {
    if ((thread & (kGroupThreads - 1)) < count) {
      barrier_arrive(shared + SharedLayout::kFree + 8 * slot(first + (thread & (kGroupThreads - 1))));
    }
  }

  // --- activations from the exchange memory to shared memory
  // The first kPieceUnits of v are this thread's part of a piece.
  template <int kAll>
  TENDON_DEVICE void put_piece(const uint4 (&v)[kAll], uint32_t to) const {
#pragma unroll
    for (int i = 0; i < kPieceUnits; ++i) store_shared_16(to + (i * kThreads + thread) * kUnitBytes, v[i]);
  }

  // sums += activations · chunksᵀ; the warpgroups take turns step by step. Steps of 16 along the depth.
  template <int kGroups, int kChunkSteps, int kChunks>
  TENDON_DEVICE void multiply(float (&sums)[4 * kGroups], uint32_t first, uint32_t from) const {
    uint32_t at[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) at[c] = chunk(first + c);
    __syncwarp();  // lanes leave the waits one by one
    wgmma_begin();
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint32_t weights = at[c];
#pragma unroll
      for (int s = 0; s < kChunkSteps / 2; ++s) {
        const int step = 2 * s + side;
        Wgmma<kGroups>::run(sums, unit_rows(from + (c * kChunkSteps + step) * 2 * kActivationStride, kActivationStride),
                            unit_rows(weights + step * 2 * kGroups * 8 * kUnitBytes, kGroups * 8 * kUnitBytes), 1);
      }
    }
    wgmma_commit();
  }

  // Adds up the sums of both warpgroups. Each keeps half of the column groups: of each half of them a half, so that the
  // groups G and G + kGroups / 2 stay together. Which group the kept one of a warpgroup is:
  template <int kGroups>
  static TENDON_DEVICE constexpr int column_group(int side, int kept) {
    constexpr int kQuarter = kGroups / 4;
    return side * kQuarter + kept % kQuarter + kept / kQuarter * (kGroups / 2);
  }
  template <int kGroups, int kSide>
  TENDON_DEVICE void trade_as(const float (&sums)[4 * kGroups], float (&kept)[2 * kGroups]) const {
    const auto place = [](int side, int i) { return column_group<kGroups>(side, i / 4) * 4 + i % 4; };
    const uint32_t at = shared + SharedLayout::kTrade + (thread & (kGroupThreads - 1)) * 4;
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) {
      store_shared_float(at + ((1 - kSide) * 16 + i) * kGroupThreads * 4, sums[place(1 - kSide, i)]);
    }
    compute_sync();
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) {
      kept[i] = sums[place(kSide, i)] + load_shared_float(at + (kSide * 16 + i) * kGroupThreads * 4);
    }
  }
  template <int kGroups>
  TENDON_DEVICE void trade(const float (&sums)[4 * kGroups], float (&kept)[2 * kGroups]) const {
    if (side == 0) {
      trade_as<kGroups, 0>(sums, kept);
    } else {
      trade_as<kGroups, 1>(sums, kept);
    }
  }
  // Row of a product's sums 4g + 2·half + {0, 1}; from kRows on there is nothing.
  TENDON_DEVICE int product_row(int half) const { return quarter * 16 + group + 8 * half; }

  // --- the residual stream
  TENDON_DEVICE int own_row() const { return block % kRowGroups * kGroupRows + warp(); }
  TENDON_DEVICE int own_column() const { return (lane >> 1) * 4; }  // within the tile
  // Hands on the residual stream, times `gains` of this thread's columns, with its squares. For whole warps that own.
  TENDON_DEVICE void publish(const float4& gains, unsigned char* stream) const {
    float squares =
        residual[0] * residual[0] + residual[1] * residual[1] + residual[2] * residual[2] + residual[3] * residual[3];
#pragma unroll
    for (int mask = 2; mask <= 16; mask *= 2) squares += shuffle_xor(squares, mask);
    if ((lane & 1) == 0) {
      store_relaxed_8(activation(stream, tile() * 8 + (lane >> 2), own_row()) + (lane & 2) * 4,
                      pack_bf16(residual[0] * gains.x, residual[1] * gains.y),
                      pack_bf16(residual[2] * gains.z, residual[3] * gains.w));
    }
    if (lane == 0) {
      store_relaxed_4(stream + Exchange::kSquares + (own_row() * kTiles + tile()) * 4, __float_as_uint(squares));
    }
  }
  // sums += activations · chunksᵀ for kPieces pieces of activations that other blocks write; `ready()` waits
  // for a small part of what comes with them: polling all of it keeps the others from writing.
  template <int kGroups, int kChunkSteps, int kPieces, class Ready>
  TENDON_DEVICE void multiply_pieces(float (&sums)[4 * kGroups], uint32_t first, const unsigned char* from,
                                     Ready ready) const {
    constexpr int kChunks = kPieceColumns / 16 / kChunkSteps;  // a piece
    const auto unit = [&](int piece, int i) {
      return from + piece * kPieceBytes + (i * kThreads + thread) * kUnitBytes;
    };
    uint4 v[2][kPieceUnits];
    ready();
    request(v[0], [&](int i) { return unit(0, i); });
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      auto& now = v[piece % 2];
      settle(now, [&](int i) { return unit(piece, i); });
      if (piece + 1 < kPieces) request(v[(piece + 1) % 2], [&](int i) { return unit(piece + 1, i); });
      if (piece >= 2) {  // its place is free again
        wgmma_wait<1>();
        release(first + (piece - 2) * kChunks, kChunks);
        compute_sync();
      }
      const uint32_t to = activations() + piece % 2 * kPieceBytes;
      put_piece(now, to);
      shared_ready();
      multiply<kGroups, kChunkSteps, kChunks>(sums, first + piece * kChunks, to);
    }
    wgmma_wait<0>();
    hold(sums);
    constexpr int kLeft = kPieces < 2 ? kPieces : 2;
    release(first + (kPieces - kLeft) * kChunks, kLeft * kChunks);
  }
  // The same for the residual stream, with the norms of its rows.
  template <int kGroups, int kChunkSteps>
  TENDON_DEVICE void multiply_stream(float (&sums)[4 * kGroups], uint32_t first, const unsigned char* stream) const {
    multiply_pieces<kGroups, kChunkSteps, kStreamPieces>(sums, first, stream, [&] {
      constexpr int kThreadsUsed = kRows * kTiles / 4;
      uint4 four[1];
      await(
          four, [&](int) { return stream + Exchange::kSquares + thread * kUnitBytes; },
          [&](int) { return thread < kThreadsUsed; });
      float squares = (__uint_as_float(four[0].x) + __uint_as_float(four[0].y)) +
                      (__uint_as_float(four[0].z) + __uint_as_float(four[0].w));
      squares += shuffle_xor(squares, 1);
      squares += shuffle_xor(squares, 2);
      if (quad == 0 && thread < kThreadsUsed) {
        store_shared_float(shared + SharedLayout::kInverse + thread, rsqrtf(squares * (1.0F / kWidth) + args.eps));
      }
    });
  }
  // Behind the barrier that follows multiply_stream.
  TENDON_DEVICE float inverse_norm(int row) const {
    return load_shared_float(shared + SharedLayout::kInverse + min(row, kRows - 1) * 4);
  }
};

}  // namespace tendon::gpu::denoise::wide
