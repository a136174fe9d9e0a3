// Puts weights, gains and cached keys into the order that the persistent denoise kernel wants (layout.h).
#include "backend/cuda/denoise/layout.h"
#include "backend/cuda/denoise/loop.h"
#include "backend/gpu/device/prelude.cuh"

namespace tendon::gpu::denoise {
namespace {

constexpr int kFragmentThreads = kFragments * 32;  // one a lane of every fragment of a chunk

// grid: (blocks · chunks)
__global__ void pack_weights_kernel(LayerWeights weights, unsigned char* packed) {
  const int block = static_cast<int>(blockIdx.x) / kWeightChunks;
  const int chunk = static_cast<int>(blockIdx.x) % kWeightChunks;
  const int fragment = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto pick = [](const Rows& rows, int row, int col) {
    return *reinterpret_cast<const uint32_t*>(rows.data + row * rows.stride + col);
  };
  uint32_t words[4];
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const Element e = weight_at(block, chunk, fragment, lane, word);
    if (e.matrix == Matrix::kQkv) {
      words[word] = e.row < kQWidth              ? pick(weights.q, e.row, e.col)
                    : e.row < kQWidth + kHeadDim ? pick(weights.k, e.row - kQWidth, e.col)
                                                 : pick(weights.v, e.row - kQWidth - kHeadDim, e.col);
    } else if (e.matrix == Matrix::kOut) {
      words[word] = pick(weights.o, e.row, e.col);
    } else if (e.matrix == Matrix::kGateUp) {
      words[word] = e.row < kMlp ? pick(weights.gate, e.row, e.col) : pick(weights.up, e.row - kMlp, e.col);
    } else {
      words[word] = pick(weights.down, e.row, e.col);
    }
  }
  reinterpret_cast<uint4*>(packed + size_t{blockIdx.x} * kChunkBytes)[threadIdx.x] =
      make_uint4(words[0], words[1], words[2], words[3]);
}

__global__ void pack_gains_kernel(const float* gain, int64_t stride, float* out) {
  const float* const from = gain + blockIdx.x * stride;
  for (auto i = static_cast<int>(threadIdx.x); i < kWidth; i += static_cast<int>(blockDim.x)) {
    out[size_t{blockIdx.x} * kWidth + i] = 1.0F + from[i];
  }
}

// One warp a row of w.
__global__ void shift_products_kernel(const float* shift, int64_t shift_stride, int steps, Rows w, int rows, float* out,
                                      int64_t out_stride) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / kWarpSize;
  if (row >= rows) return;
  const uint16_t* const weights = w.data + row * w.stride;
  for (int step = 0; step < steps; ++step) {
    float sum = 0.0F;
    for (int k = lane(); k < kWidth; k += kWarpSize) {
      sum = fmaf(widen(Bf16{weights[k]}), shift[step * shift_stride + k], sum);
    }
    sum = wave_sum(sum);
    if (lane() == 0) out[step * out_stride + row] = sum;
  }
}

// grid: (tiles of keys, parts, layers). 16 rows of keys and of values come into shared memory, from where they are
// picked.
__global__ void pack_keys_kernel(const __grid_constant__ Caches caches, const int32_t* cached_keys,
                                 unsigned char* packed, unsigned char* exchange) {
  constexpr int kPitch = kHeadDim + 8;
  static_assert(kFragmentThreads == kTileKeys * kHeadDim / 8);
  __shared__ __align__(16) uint16_t rows[2][kTileKeys * kPitch];
  launch_dependents();
  wait_for_producers();
  const int tile = static_cast<int>(blockIdx.x);
  const int part = static_cast<int>(blockIdx.y);
  const int layer = static_cast<int>(blockIdx.z);
  const int row = static_cast<int>(threadIdx.x) / (kHeadDim / 8);
  const int col = static_cast<int>(threadIdx.x) % (kHeadDim / 8) * 8;
  const int slot = tile * kTileKeys + row;
  uint4 eight[2] = {};
  if (slot < cached_slots(part, *cached_keys)) {
    const int64_t from = (slot * kParts + part) * caches.stride + col;
    eight[0] = *reinterpret_cast<const uint4*>(caches.k[layer] + from);
    eight[1] = *reinterpret_cast<const uint4*>(caches.v[layer] + from);
  }
  const size_t block = size_t{blockIdx.z} * kParts + part;
  for (size_t i = (block * kKeyTiles + tile) * kFragmentThreads + threadIdx.x; i < Exchange::kMemory / 16;
       i += size_t{gridDim.z} * kParts * kKeyTiles * kFragmentThreads) {
    reinterpret_cast<uint4*>(exchange)[i] = make_uint4(~0U, ~0U, ~0U, ~0U);
  }
#pragma unroll
  for (int kind = 0; kind < 2; ++kind) *reinterpret_cast<uint4*>(rows[kind] + row * kPitch + col) = eight[kind];
  __syncthreads();
#pragma unroll
  for (int kind = 0; kind < 2; ++kind) {
    const int chunk = kind * kKeyTiles + tile;
    const auto element = [&](int half) -> uint32_t {
      const KeyElement e = key_at(chunk, static_cast<int>(threadIdx.x) / 32, lane(), half);
      return rows[kind][(e.slot - tile * kTileKeys) * kPitch + e.dim];
    };
    uint32_t words[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) words[word] = element(2 * word) | element(2 * word + 1) << 16;
    reinterpret_cast<uint4*>(packed + (block * kKvChunks + chunk) * kChunkBytes)[threadIdx.x] =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

}  // namespace

void launch_pack_weights(const LayerWeights& weights, unsigned char* packed, Stream stream) {
  launch<pack_weights_kernel>(
      {.grid = dim3(kBlocks * kWeightChunks), .block = dim3(kFragmentThreads), .stream = stream}, weights, packed);
}

void launch_pack_gains(const float* gain, int64_t stride, int rows, float* out, Stream stream) {
  launch<pack_gains_kernel>({.grid = dim3(static_cast<unsigned>(rows)), .block = dim3(256), .stream = stream}, gain,
                            stride, out);
}

void launch_shift_products(const float* shift, int64_t shift_stride, int steps, const std::vector<Rows>& parts,
                           const std::vector<int>& part_rows, float* out, int64_t out_stride, Stream stream) {
  for (size_t i = 0; i < parts.size(); ++i) {
    launch<shift_products_kernel>(
        {.grid = dim3(static_cast<unsigned>(ceil_div(part_rows[i], 8))), .block = dim3(256), .stream = stream}, shift,
        shift_stride, steps, parts[i], part_rows[i], out, out_stride);
    out += part_rows[i];
  }
}

void launch_pack_keys(const Caches& caches, int layers, const int32_t* cached_keys, unsigned char* packed,
                      unsigned char* exchange, Stream stream) {
  launch<pack_keys_kernel>({.grid = dim3(kKeyTiles, kParts, static_cast<unsigned>(layers)),
                            .block = dim3(kFragmentThreads),
                            .stream = stream,
                            .overlaps = true},
                           caches, cached_keys, packed, exchange);
}

}  // namespace tendon::gpu::denoise
