// Puts weights (as codes, too), gains and cached keys into the order that the persistent denoise kernel wants
// (layout.h).
#include "backend/cuda/denoise/layout.h"
#include "backend/cuda/denoise/loop.h"
#include "backend/gpu/codes.cuh"
#include "backend/gpu/device/prelude.cuh"

namespace tendon::gpu::denoise {
namespace {

constexpr int kFragmentThreads = kFragments * 32;  // one a lane of every fragment of a chunk

// The word that holds an element and its right neighbour.
TENDON_DEVICE uint32_t word_at(const LayerWeights& weights, const Element& e) {
  const auto pick = [&](const Rows& rows, int row) {
    return *reinterpret_cast<const uint32_t*>(rows.data + row * rows.stride + e.col);
  };
  if (e.matrix == Matrix::kQkv) {
    return e.row < kQWidth              ? pick(weights.q, e.row)
           : e.row < kQWidth + kHeadDim ? pick(weights.k, e.row - kQWidth)
                                        : pick(weights.v, e.row - kQWidth - kHeadDim);
  }
  if (e.matrix == Matrix::kOut) return pick(weights.o, e.row);
  if (e.matrix == Matrix::kGateUp) return e.row < kMlp ? pick(weights.gate, e.row) : pick(weights.up, e.row - kMlp);
  return pick(weights.down, e.row);
}

// Of pack kernels, grid: (blocks · chunks). A thread has the four words of a lane in one fragment.
struct Place {
  int block, chunk, fragment, lane;
  TENDON_DEVICE Place() {
    block = static_cast<int>(blockIdx.x) / kWeightChunks;
    chunk = static_cast<int>(blockIdx.x) % kWeightChunks;
    fragment = static_cast<int>(threadIdx.x) / 32;
    lane = static_cast<int>(threadIdx.x) % 32;
  }
};

__global__ void pack_weights_kernel(LayerWeights weights, unsigned char* packed) {
  const Place at;
  uint32_t words[4];
#pragma unroll
  for (int word = 0; word < 4; ++word)
    words[word] = word_at(weights, weight_at(at.block, at.chunk, at.fragment, at.lane, word));
  reinterpret_cast<uint4*>(packed + size_t{blockIdx.x} * kChunkBytes)[threadIdx.x] =
      make_uint4(words[0], words[1], words[2], words[3]);
}

TENDON_DEVICE int code_of(float number, float unit) {
  return static_cast<int>(rintf(fminf(fmaxf(number / unit, -127.0F), 127.0F)));
}

// One warp a row of a layer's matrices, in the order of its scales: what the row's numbers are multiples of. Their
// roundings to bf16 have blurred the largest one's 127th part, so the multiples that it gives are fitted.
__global__ void row_scales_kernel(LayerWeights weights, float* scales) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / kWarpSize;
  if (row >= kLayerScales) return;
  const Element first = row < kOutScales      ? Element{Matrix::kQkv, row, 0}
                        : row < kGateUpScales ? Element{Matrix::kOut, row - kOutScales, 0}
                        : row < kDownScales   ? Element{Matrix::kGateUp, row - kGateUpScales, 0}
                                              : Element{Matrix::kDown, row - kDownScales, 0};
  const int cols = first.matrix == Matrix::kOut ? kQWidth : first.matrix == Matrix::kDown ? kMlp : kWidth;
  const auto each = [&](auto take) {
    for (int col = 2 * lane(); col < cols; col += 2 * kWarpSize) {
      const uint32_t word = word_at(weights, {first.matrix, first.row, col});
      take(low_bf16(word));
      take(high_bf16(word));
    }
  };
  float largest = 0.0F;
  each([&](float number) { largest = fmaxf(largest, code_size(number)); });
  const float unit = CodeScale<int8_t>(wave_max(largest)).factor;
  float products = 0.0F;
  float squares = 0.0F;
  each([&](float number) {
    const auto code = static_cast<float>(code_of(number, unit));
    products += code * number;
    squares += code * code;
  });
  products = wave_sum(products);
  squares = wave_sum(squares);
  // A row with a number that is not finite has an infinite unit, and so has what is made of it.
  const bool fitted = squares > 0.0F && unit < __builtin_huge_valf();
  if (lane() == 0) scales[row] = kLiftedCodes * (fitted ? products / squares : unit);
}

__global__ void pack_codes_kernel(LayerWeights weights, const float* scales, unsigned char* packed) {
  const Place at;
  int codes[4][2];
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const Element e = weight_at(at.block, at.chunk, at.fragment, at.lane, word);
    const float unit = scales[scale_of(e)] / kLiftedCodes;
    const uint32_t numbers = word_at(weights, e);
    codes[word][0] = code_of(low_bf16(numbers), unit);
    codes[word][1] = code_of(high_bf16(numbers), unit);
  }
  unsigned char* const chunk = packed + size_t{blockIdx.x} * weight_chunk_bytes(true);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    *reinterpret_cast<uint32_t*>(chunk + code_place(at.chunk, at.fragment, at.lane, half)) =
        code_word(codes[2 * half], codes[2 * half + 1]);
  }
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

void launch_pack_codes(const LayerWeights& weights, unsigned char* packed, float* scales, Stream stream) {
  constexpr int kRowsOfBlock = 8;
  launch<row_scales_kernel>(
      {.grid = dim3(kLayerScales / kRowsOfBlock), .block = dim3(kRowsOfBlock * 32), .stream = stream}, weights, scales);
  launch<pack_codes_kernel>({.grid = dim3(kBlocks * kWeightChunks), .block = dim3(kFragmentThreads), .stream = stream},
                            weights, scales, packed);
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
