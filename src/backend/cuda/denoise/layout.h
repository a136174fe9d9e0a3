// How the persistent denoise kernel wants its operands in memory: weights and cached keys in the order in which the
// tensor cores take them, cut into chunks that one block streams one after the other.
//
// A chunk holds 16 fragments of 512 bytes. A fragment is the A operand of one mma.m16n8k16 (16 output columns by 16 of
// the depth), 16 bytes a lane. Block b streams its 33 chunks of a layer in the order qkv, (keys and values), o,
// gate and up, down.
#pragma once

#include "backend/cuda/denoise/network.h"

namespace tendon::gpu::denoise {

constexpr int kRows = 16;     // rows (tokens) that the exchange buffers have room for
constexpr int kMaxRows = 12;  // rows of the sums in shared memory

constexpr int kFragmentBytes = 512, kFragments = kChunkBytes / kFragmentBytes;
constexpr int kQkvChunks = 5, kOutChunks = 4, kGateUpChunks = 16, kDownChunks = 8;
constexpr int kWeightChunks = kQkvChunks + kOutChunks + kGateUpChunks + kDownChunks;
// Weights may be i8 codes, a byte in place of two.
TENDON_HOST_DEVICE constexpr unsigned weight_chunk_bytes(bool codes) { return codes ? kChunkBytes / 2 : kChunkBytes; }
TENDON_HOST_DEVICE constexpr size_t layer_weight_bytes(bool codes) {
  return size_t{kBlocks} * kWeightChunks * weight_chunk_bytes(codes);
}

// Keys are dealt out to 16 parts of 64 slots for each of the 8 heads' blocks: cached key c to slot c / 16 of part c %
// 16, the key of row r itself to the last slot of part 15 - r. So all parts have nearly as many.
constexpr int kParts = 16, kKeyTiles = 4, kTileKeys = 16, kPartKeys = kKeyTiles * kTileKeys;
constexpr int kKvChunks = 2 * kKeyTiles;
constexpr size_t kLayerKvBytes = size_t{kParts} * kKvChunks * kChunkBytes;
constexpr int kMaxCachedKeys = kParts * (kPartKeys - 1);
constexpr int kLayerChunks = kWeightChunks + kKvChunks;

TENDON_HOST_DEVICE constexpr int cached_slots(int part, int cached) { return (cached - part + kParts - 1) / kParts; }
TENDON_HOST_DEVICE constexpr int own_row(int part) { return kParts - 1 - part; }

// The two neighbouring elements that lie in 32-bit word `word` (0–3) of `lane` in a fragment.
TENDON_HOST_DEVICE constexpr Element weight_at(int block, int chunk, int fragment, int lane, int word) {
  const int pair = block & 1;  // the blocks of a pair share the depth of o and down
  const int group = lane >> 2;
  const int row16 = group + 8 * (word & 1);
  const int depth_in_step = 8 * (lane & 3) + 2 * (word >> 1);
  // Two k steps take 32 consecutive elements of the depth: each lane has 8 neighbours of them, half a step each.
  const auto depth = [&](int step) { return 32 * (step / 2) + 4 * (step & 1) + depth_in_step; };
  // q, k, v in units of four: dimensions 2i, 2i + 1 of a head and their rotation partners.
  const auto unit_row = [](int unit, int member) {
    return (unit / 64) * kHeadDim + 2 * (unit % 64) + (member & 1) + (member >> 1) * kHalfDim;
  };
  if (chunk < 4) {
    const int index = chunk * kFragments + fragment;  // 8 k steps of each of 8 warps
    return {Matrix::kQkv, unit_row(block * 5 + row16 / 4, row16 % 4), index / 8 * 128 + depth(index % 8)};
  }
  if (chunk == 4) {  // the fifth unit: 16 lanes of 8 bytes a k step
    const int byte = fragment * kFragmentBytes + lane * 16 + word * 4;
    const int index = byte / 128;
    const int in_step = byte % 128;
    const int lane16 = in_step / 8;
    const int step = index % 8;
    return {Matrix::kQkv, unit_row(block * 5 + 4, lane16 >> 2),
            index / 8 * 128 + 32 * (step / 2) + 4 * (step & 1) + 8 * (lane16 & 3) + in_step % 8 / 4 * 2};
  }
  chunk -= kQkvChunks;
  if (chunk < kOutChunks) {
    const int index = chunk * kFragments + fragment;
    return {Matrix::kOut, block / 2 * 16 + row16, pair * 1024 + index / 8 * 128 + depth(index % 8)};
  }
  chunk -= kOutChunks;
  if (chunk < kGateUpChunks) {  // two chunks a warp: four k steps of four tiles, gate, gate, up, up
    const int step = (chunk & 1) * 4 + fragment / 4;
    const int row = fragment % 4 * 16 + row16;
    return {Matrix::kGateUp, row < 32 ? block * 32 + row : kMlp + block * 32 + row - 32, chunk / 2 * 128 + depth(step)};
  }
  chunk -= kGateUpChunks;
  return {Matrix::kDown, block / 2 * 16 + row16, pair * 2048 + chunk * 256 + depth(fragment)};
}

// --- weights as codes: sign and seven bits of magnitude each, with a scale for each row of a matrix. Four of them, two
// pairs of neighbours that are words of a lane, share 32 bits so that masks make them subnormal bf16 numbers: of the
// first pair sign and magnitude lie where bf16 has them, of the other where they come by exchanging bytes.
constexpr uint32_t kCodeMask = 0x807f807fU;
constexpr uint32_t kCodeLift = 0x7e807e80U;  // two numbers 2¹²⁶, by which they become ordinary ones: code / 128
constexpr float kLiftedCodes = 128.0F;

// The numbers of two words, each the one with the lower column first.
TENDON_HOST_DEVICE constexpr uint32_t code_word(const int (&first)[2], const int (&second)[2]) {
  uint32_t word = 0;
  for (int i = 0; i < 2; ++i) {
    const uint32_t a = first[i] < 0 ? 0x8000U | static_cast<uint32_t>(-first[i]) : static_cast<uint32_t>(first[i]);
    const uint32_t b =
        second[i] < 0 ? 0x80U | static_cast<uint32_t>(-second[i]) << 8 : static_cast<uint32_t>(second[i]) << 8;
    word |= (a | b) << (16 * i);
  }
  return word;
}
// Where in a chunk of codes, in bytes, words 2 · half and 2 · half + 1 of a lane lie. A lane has two fragments side by
// side; of the fifth unit its eight k steps.
TENDON_HOST_DEVICE constexpr int code_place(int chunk, int fragment, int lane, int half) {
  if (chunk != kQkvChunks - 1) return fragment / 2 * kFragmentBytes + lane * 16 + fragment % 2 * 8 + half * 4;
  const int byte = fragment * kFragmentBytes + lane * 16 + half * 8;
  const int step_of_warps = byte / 128;
  return (step_of_warps / 8 * 16 + byte % 128 / 8) * 32 + step_of_warps % 8 * 4;
}

// Scales of a layer's rows, f32.
constexpr int kQkvScales = 0, kOutScales = kQkvWidth, kGateUpScales = kOutScales + kWidth,
              kDownScales = kGateUpScales + 2 * kMlp, kLayerScales = kDownScales + kWidth;
TENDON_HOST_DEVICE constexpr int scale_of(const Element& e) {
  const int first = e.matrix == Matrix::kQkv      ? kQkvScales
                    : e.matrix == Matrix::kOut    ? kOutScales
                    : e.matrix == Matrix::kGateUp ? kGateUpScales
                                                  : kDownScales;
  return first + e.row;
}

// Which slot and dimension lie in half word `half` (0–7) of a lane: of K in chunks 0–3, of V in chunks 4–7.
struct KeyElement {
  int slot, dim;  // slot of the part
};
TENDON_HOST_DEVICE constexpr KeyElement key_at(int chunk, int fragment, int lane, int half) {
  const int group = lane >> 2;
  const int quad = lane & 3;
  const int word = half >> 1;
  if (chunk < kKeyTiles) {
    return {chunk * kTileKeys + group + 8 * (word & 1),
            32 * (fragment / 2) + 8 * quad + 4 * (fragment & 1) + 2 * (word >> 1) + (half & 1)};
  }
  // A warp has 32 dimensions as four tiles of eight: a lane's sums of all four are eight neighbouring dimensions.
  const int tile = 2 * (fragment & 1) + (word >> 1);
  return {(chunk - kKeyTiles) * kTileKeys + 4 * quad + 2 * (word & 1) + (half & 1),
          32 * (fragment / 2) + 8 * (group >> 1) + 2 * tile + (group & 1)};
}

// What blocks exchange, in bytes from the start of the exchange memory. Activations lie as [column / 8][row][8] bf16.
// Two sets take turns layer by layer: while one is in use the other is made empty again.
struct Exchange {
  static constexpr size_t kActivation = size_t{kRows} * 16;  // eight columns of all rows
  // The residual stream times the gains of the norm that reads it, then the sums of its squares over the eight columns
  // of each block, [block][row] bf16: what rounding them adds to a norm is far below the rounding of the stream itself.
  static constexpr size_t kSquares = kWidth / 8 * kActivation;
  static constexpr size_t kStream = kSquares + size_t{kBlocks} * kRows * 2;
  // First part of a set
  static constexpr size_t kX = 0;  // input of the layer
  static constexpr size_t kQkv = kX + kStream;
  static constexpr size_t kPartial = kQkv + kQkvWidth / 8 * kActivation;  // [part][column / 8][row][8]
  static constexpr size_t kPartialSums = kPartial + kParts * size_t{kQWidth} / 8 * kActivation;  // max and sum, f32
  static constexpr size_t kAttended = kPartialSums + size_t{kParts} * kHeads * kRows * 8;
  static constexpr size_t kFirstEnd = kAttended + kQWidth / 8 * kActivation;
  // Second part
  static constexpr size_t kAfterAttention = kFirstEnd;
  static constexpr size_t kHidden = kAfterAttention + kStream;
  static constexpr size_t kSet = kHidden + kMlp / 8 * kActivation;
  // Once a step
  static constexpr size_t kTokens = 2 * kSet;                                            // input of the first layer
  static constexpr size_t kActions = kTokens + kStream;                                  // x_t, (kMaxRows, 32) f32
  static constexpr size_t kActionHidden = kActions + size_t{kMaxRows} * kActionDim * 4;  // (kMaxRows, 1024) f32
  static constexpr size_t kBytes = kActionHidden + size_t{kMaxRows} * kWidth * 4;
  // Arrivals at the barriers of all blocks, in the build that has them (exchange.cuh).
  static constexpr size_t kArrivals = kBytes;
  static constexpr size_t kMemory = kArrivals + 128;
};

}  // namespace tendon::gpu::denoise
