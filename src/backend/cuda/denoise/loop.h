// The launches of the persistent denoise kernel and of what prepares its operands.
#pragma once

#include <vector>

#include "backend/cuda/denoise/args.h"
#include "backend/gpu/stream.h"

namespace tendon::gpu::denoise {

// Whether the current card can hold all blocks at once: they wait for each other.
bool fits_card();
template <Rule kRule>
void launch_loop(const LoopArgs& args, const Previous<kRule>& previous, bool pi05, Stream stream);

// --- once (prepare.cu); rows of bf16 weights with their strides in elements
struct Rows {
  const uint16_t* data = nullptr;
  int64_t stride = 0;
};
struct LayerWeights {
  Rows q, k, v, o, gate, up, down;
};
// One layer into the kernel's order: layer_weight_bytes(); as codes with kLayerScales scales.
void launch_pack_weights(const LayerWeights& weights, unsigned char* packed, Stream stream);
void launch_pack_codes(const LayerWeights& weights, unsigned char* packed, float* scales, Stream stream);
// out[i] = 1 + gain[i] for `rows` rows of kWidth numbers, `stride` apart in `gain`.
void launch_pack_gains(const float* gain, int64_t stride, int rows, float* out, Stream stream);
// What a norm's shift adds to a product: out[step · out_stride + n] = Σ shift[step · shift_stride + k] · w[n, k], for
// the rows of each part one behind the other.
void launch_shift_products(const float* shift, int64_t shift_stride, int steps, const std::vector<Rows>& parts,
                           const std::vector<int>& part_rows, float* out, int64_t out_stride, Stream stream);

// --- every call
constexpr int kMaxLayers = 32;
struct Caches {
  const uint16_t *k[kMaxLayers] = {}, *v[kMaxLayers] = {};
  int64_t stride = 0;  // elements from key to key
};
// Keys and values of the prefix into the kernel's order, and the exchange memory made empty.
void launch_pack_keys(const Caches& caches, int layers, const int32_t* cached_keys, unsigned char* packed,
                      unsigned char* exchange, Stream stream);

}  // namespace tendon::gpu::denoise
