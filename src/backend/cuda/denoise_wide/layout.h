// How the persistent denoise kernel for many rows wants its operands in memory: in 16-byte units of eight elements
// along the depth, units of neighbouring rows side by side, which is how wgmma takes them without a swizzle.
//
// Block b streams its chunks of a layer in the order qkv (the first 80 blocks), keys and values, o, gate and up, down.
#pragma once

#include "backend/cuda/denoise/network.h"

namespace tendon::gpu::denoise::wide {

constexpr int kRows = 56;       // rows (tokens) of every activation
constexpr int kUnitBytes = 16;  // eight bf16
constexpr int kChunkUnits = kChunkBytes / kUnitBytes;

// The residual stream is owned in tiles of 64 columns by seven rows.
constexpr int kTileColumns = 64, kTiles = kWidth / kTileColumns;
constexpr int kGroupRows = 7, kRowGroups = kRows / kGroupRows;
static_assert(kTiles * kRowGroups == kBlocks && kRowGroups * kGroupRows == kRows);

// q, k, v: 16 dimensions and their rotation partners a block. o and down: a tile of columns and an eighth of the depth.
constexpr int kQkvColumns = 32, kQkvBlocks = kQkvWidth / kQkvColumns;
constexpr int kSplits = 8, kOutDepth = kQWidth / kSplits, kDownDepth = kMlp / kSplits;
constexpr int kHiddenColumns = kMlp / kBlocks;
constexpr int kQkvChunks = 8, kOutChunks = 4, kGateUpChunks = 16, kDownChunks = 8;
constexpr int kLaterChunks = kOutChunks + kGateUpChunks + kDownChunks;
constexpr size_t kLayerWeightBytes = size_t{kQkvBlocks * kQkvChunks + kBlocks * kLaterChunks} * kChunkBytes;

TENDON_HOST_DEVICE constexpr int qkv_chunks(int block) { return block < kQkvBlocks ? kQkvChunks : 0; }
// The block's first chunk among those of its layer.
TENDON_HOST_DEVICE constexpr int first_chunk(int block) {
  return block * kLaterChunks + (block < kQkvBlocks ? block : kQkvBlocks) * kQkvChunks;
}

// The first of the eight elements in unit `unit` of a block's chunk.
TENDON_HOST_DEVICE constexpr Element weight_at(int block, int chunk, int unit) {
  if (chunk < qkv_chunks(block)) {
    const int n = unit % kQkvColumns;
    const int dim = block % 8 * 16 + n % 16 + n / 16 * kHalfDim;
    return {Matrix::kQkv, block / 8 * kHeadDim + dim, chunk * 128 + unit / kQkvColumns * 8};
  }
  chunk -= qkv_chunks(block);
  const int depth = unit / kTileColumns * 8;
  const int n = unit % kTileColumns;
  if (chunk < kOutChunks) {
    return {Matrix::kOut, block / kSplits * kTileColumns + n, block % kSplits * kOutDepth + chunk * 64 + depth};
  }
  chunk -= kOutChunks;
  if (chunk < kGateUpChunks) {
    return {Matrix::kGateUp, block * kHiddenColumns + n % kHiddenColumns + n / kHiddenColumns * kMlp,
            chunk * 64 + depth};
  }
  chunk -= kGateUpChunks;
  return {Matrix::kDown, block / kSplits * kTileColumns + n, block % kSplits * kDownDepth + chunk * 64 + depth};
}

// Keys, cached and the rows' own, are dealt out to 16 parts of 64 slots: cached keys from the front, own ones from the
// back, so that all parts have nearly as many.
constexpr int kParts = 16, kPartKeys = 64, kMostOwn = 4;
constexpr int kKeyChunks = 4, kKvChunks = 2 * kKeyChunks;
constexpr size_t kLayerKvBytes = size_t{kParts} * kKvChunks * kChunkBytes;

// The own key in slot kPartKeys - 1 - i of a part.
TENDON_HOST_DEVICE constexpr int own_row(int part, int i) { return i / 2 * 32 + part % 2 * 16 + i % 2 * 8 + part / 2; }
// How many of the first `rows` own keys a part has.
TENDON_HOST_DEVICE constexpr int own_keys(int part, int rows) {
  int count = 0;
  for (int i = 0; i < kMostOwn; ++i) count += own_row(part, i) < rows ? 1 : 0;
  return count;
}
// The cached key in slot s of a part is s * kParts + cached_offset(part): odd parts, which have fewer own keys, first.
TENDON_HOST_DEVICE constexpr int cached_offset(int part) { return part % 2 != 0 ? part / 2 : kParts / 2 + part / 2; }
TENDON_HOST_DEVICE constexpr int cached_slots(int part, int cached) {
  return (cached - cached_offset(part) + kParts - 1) / kParts;
}
constexpr bool keys_fit(int cached, int rows) {
  for (int part = 0; part < kParts; ++part) {
    if (cached_slots(part, cached) + own_keys(part, rows) > kPartKeys) return false;
  }
  return true;
}

// Slot and dimension of the first element of a unit, of K (eight dimensions) in chunks 0–3, of V (eight slots) in 4–7.
struct KeyElement {
  int slot, dim;
};
TENDON_HOST_DEVICE constexpr KeyElement key_at(int chunk, int unit) {
  if (chunk < kKeyChunks) return {unit % kPartKeys, chunk * 64 + unit / kPartKeys * 8};
  return {(chunk - kKeyChunks) * 16 + unit / kHeadDim * 8, unit % kHeadDim};
}

// What blocks exchange, in bytes from the start of the exchange memory. Activations lie as [column / 8][row][8] bf16.
// Two sets take turns layer by layer: while one is in use the other is made empty again. What only one block reads
// exists once: its reader empties it at once.
struct Exchange {
  static constexpr size_t kActivation = size_t{kRows} * kUnitBytes;  // eight columns of all rows
  // The residual stream times the gains of the norm that reads it, then the sums of its squares over the columns of
  // each tile, [row][tile] f32.
  static constexpr size_t kSquares = kWidth / 8 * kActivation;
  static constexpr size_t kStream = kSquares + size_t{kRows} * kTiles * 4;
  // First part of a set
  static constexpr size_t kX = 0;  // input of the layer
  static constexpr size_t kQk = kX + kStream;
  static constexpr size_t kV = kQk + (kQWidth + kHeadDim) / 8 * kActivation;  // [part][dimension][kMostOwn] bf16
  static constexpr size_t kPartialSums = kV + size_t{kParts} * kHeadDim * kMostOwn * 2;  // [head][row][part] max, sum
  static constexpr size_t kAttended = kPartialSums + size_t{kHeads} * kRows * kParts * 8;
  static constexpr size_t kFirstEnd = kAttended + kQWidth / 8 * kActivation;
  // Second part
  static constexpr size_t kAfterAttention = kFirstEnd;
  static constexpr size_t kHidden = kAfterAttention + kStream;
  static constexpr size_t kSet = kHidden + kMlp / 8 * kActivation;
  // With one reader: of attention [part][column / 8][row][8] bf16, of o and down [tile][row group][split][row][64] f32
  static constexpr size_t kPartial = 2 * kSet;
  static constexpr size_t kSplitSums = size_t{kBlocks} * kSplits * kGroupRows * kTileColumns * 4;
  static constexpr size_t kOutSums = kPartial + kParts * (kQWidth / 8) * kActivation;
  static constexpr size_t kDownSums = kOutSums + kSplitSums;
  // Once a step
  static constexpr size_t kTokens = kDownSums + kSplitSums;                           // input of the first layer
  static constexpr size_t kActions = kTokens + kStream;                               // x_t, (kRows, 32) f32
  static constexpr size_t kActionHidden = kActions + size_t{kRows} * kActionDim * 4;  // (kRows, 1024) f32
  static constexpr size_t kBytes = kActionHidden + size_t{kRows} * kWidth * 4;
  // Arrivals at the barriers of all blocks, in the build that has them (exchange.cuh).
  static constexpr size_t kArrivals = kBytes;
  static constexpr size_t kMemory = kArrivals + 128;
};

}  // namespace tendon::gpu::denoise::wide
