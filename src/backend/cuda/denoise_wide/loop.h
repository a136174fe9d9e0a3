// The launches of the persistent denoise kernel for many rows and of what prepares its operands.
#pragma once

#include "backend/cuda/denoise/loop.h"

namespace tendon::gpu::denoise::wide {

// Whether the current card can hold all blocks at once: they wait for each other.
bool fits_card();
template <Rule kRule>
void launch_loop(const LoopArgs& args, const Previous<kRule>& previous, bool pi05, Stream stream);

// One layer into the kernel's order: kLayerWeightBytes.
void launch_pack_weights(const LayerWeights& weights, unsigned char* packed, Stream stream);
// out (cols, rows) = in (rows, cols)ᵀ
void launch_transpose(const float* in, int rows, int cols, float* out, Stream stream);
// Keys and values of the prefix into the kernel's order, and the exchange memory made empty.
void launch_pack_keys(const Caches& caches, int layers, const int32_t* cached_keys, unsigned char* packed,
                      unsigned char* exchange, Stream stream);

}  // namespace tendon::gpu::denoise::wide
