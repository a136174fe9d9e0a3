// Puts weights and cached keys into the order that the persistent denoise kernel for many rows wants (layout.h).
#include "backend/cuda/denoise_wide/layout.h"
#include "backend/cuda/denoise_wide/loop.h"
#include "backend/gpu/device/prelude.cuh"

namespace tendon::gpu::denoise::wide {
namespace {

// grid: (chunks of a layer)
__global__ void pack_weights_kernel(LayerWeights weights, unsigned char* packed) {
  const auto chunk_of_layer = static_cast<int>(blockIdx.x);
  int block = chunk_of_layer / (kLaterChunks + kQkvChunks);
  if (block >= kQkvBlocks) block = kQkvBlocks + (chunk_of_layer - first_chunk(kQkvBlocks)) / kLaterChunks;
  const Element e = weight_at(block, chunk_of_layer - first_chunk(block), static_cast<int>(threadIdx.x));
  const auto pick = [&](const Rows& rows, int row) {
    const auto* const from = reinterpret_cast<const uint32_t*>(rows.data + row * rows.stride + e.col);
    return make_uint4(from[0], from[1], from[2], from[3]);
  };
  uint4 unit;
  if (e.matrix == Matrix::kQkv) {
    unit = e.row < kQWidth              ? pick(weights.q, e.row)
           : e.row < kQWidth + kHeadDim ? pick(weights.k, e.row - kQWidth)
                                        : pick(weights.v, e.row - kQWidth - kHeadDim);
  } else if (e.matrix == Matrix::kOut) {
    unit = pick(weights.o, e.row);
  } else if (e.matrix == Matrix::kGateUp) {
    unit = e.row < kMlp ? pick(weights.gate, e.row) : pick(weights.up, e.row - kMlp);
  } else {
    unit = pick(weights.down, e.row);
  }
  reinterpret_cast<uint4*>(packed + size_t{blockIdx.x} * kChunkBytes)[threadIdx.x] = unit;
}

__global__ void transpose_kernel(const float* in, int cols, float* out) {
  for (auto col = static_cast<int>(threadIdx.x); col < cols; col += static_cast<int>(blockDim.x)) {
    out[size_t{static_cast<unsigned>(col)} * gridDim.x + blockIdx.x] = in[size_t{blockIdx.x} * cols + col];
  }
}

// grid: (chunks, parts, layers)
__global__ void pack_keys_kernel(const __grid_constant__ Caches caches, const int32_t* cached_keys,
                                 unsigned char* packed, unsigned char* exchange) {
  launch_dependents();
  wait_for_producers();
  const auto chunk = static_cast<int>(blockIdx.x);
  const auto part = static_cast<int>(blockIdx.y);
  const auto layer = static_cast<int>(blockIdx.z);
  const size_t block = (size_t{blockIdx.z} * kParts + part) * kKvChunks + chunk;
  for (size_t i = block * kChunkUnits + threadIdx.x; i < Exchange::kMemory / 16;
       i += size_t{gridDim.z} * kParts * kKvChunks * kChunkUnits) {
    reinterpret_cast<uint4*>(exchange)[i] = make_uint4(~0U, ~0U, ~0U, ~0U);
  }
  const bool values = chunk >= kKeyChunks;
  const uint16_t* const from = values ? caches.v[layer] : caches.k[layer];
  const int slots = cached_slots(part, *cached_keys);
  const KeyElement e = key_at(chunk, static_cast<int>(threadIdx.x));
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int slot = e.slot + (values ? i : 0);
    const int key = slot * kParts + cached_offset(part);
    const uint32_t bits = slot < slots ? from[key * caches.stride + e.dim + (values ? 0 : i)] : 0U;
    words[i / 2] = i % 2 == 0 ? bits : words[i / 2] | bits << 16;
  }
  reinterpret_cast<uint4*>(packed + block * kChunkBytes)[threadIdx.x] =
      make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace

void launch_pack_weights(const LayerWeights& weights, unsigned char* packed, Stream stream) {
  launch<pack_weights_kernel>({.grid = dim3(static_cast<unsigned>(kLayerWeightBytes / kChunkBytes)),
                               .block = dim3(kChunkUnits),
                               .stream = stream},
                              weights, packed);
}

void launch_transpose(const float* in, int rows, int cols, float* out, Stream stream) {
  launch<transpose_kernel>({.grid = dim3(static_cast<unsigned>(rows)), .block = dim3(256), .stream = stream}, in, cols,
                           out);
}

void launch_pack_keys(const Caches& caches, int layers, const int32_t* cached_keys, unsigned char* packed,
                      unsigned char* exchange, Stream stream) {
  launch<pack_keys_kernel>({.grid = dim3(kKvChunks, kParts, static_cast<unsigned>(layers)),
                            .block = dim3(kChunkUnits),
                            .stream = stream,
                            .overlaps = true},
                           caches, cached_keys, packed, exchange);
}

}  // namespace tendon::gpu::denoise::wide
