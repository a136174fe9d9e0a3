// Attention on wgmma, as the host sees it: which tensors the kernels copy from and to, and how.
#pragma once

#include <cuda.h>

#include "backend/gpu/stream.h"
#include "backend/gpu/visible_keys.cuh"
#include "base/dtype.h"

namespace tendon::gpu::attention {

constexpr int kTileRows = 64;  // of queries (tokens × heads that share keys) and of keys
constexpr int kWideCols = 64;  // of a box with 128-byte swizzle
constexpr int kRestCols = 16;  // of a box with 32-byte swizzle

// How tensors are copied, innermost dimension first, in boxes of 64 rows. What lies beyond a head's width or a sample's
// last row is zeros.
struct Maps {
  CUtensorMap q, k, v, out;
};

struct Args {
  VisibleKeys visible;
  int queries, kv_heads;
  int group;    // query heads to a K/V head; divides 64
  float scale;  // of logits, for powers of two
  // Where results become codes with unit scales: (heads · D) factors, the codes, from a row of them to the next, and
  // (B · T) scales.
  const float* factors;
  void* codes;
  int64_t codes_stride;
  float* code_scales;
  int head_cols;
};

// Heads of 256 columns, any number of keys. Maps of (column of 64, head, token, block of columns, sample): a box has
// all blocks of columns, one behind the other, of `out` one half.
constexpr int kStreamCols = 256;
// `result`: bf16, e4m3 or i8. The map of codes counts them in pairs.
void launch_streamed_keys(const Maps& maps, const Args& args, DType result, int batch, Stream stream);

// Heads of 72 or 80 columns, each query head with keys of its own, at most kHeldKeys of them, all visible.
// Maps of (column, head, token, sample); boxes of 64 and of 16 columns.
constexpr int kHeldKeys = 256;
void launch_held_keys(const Maps& wide, const Maps& rest, const Args& args, DType result, int batch, Stream stream);

}  // namespace tendon::gpu::attention
