// What the kernels of attention share; formula in ops/basic_ops.h.
#pragma once

#include "backend/gpu/device/prelude.cuh"
#include "backend/gpu/visible_keys.cuh"

namespace tendon::gpu::attention {

constexpr int kRows = 64;  // query rows of a block
constexpr int kKeys = 32;  // keys of a tile

struct Args {
  const void *q, *k, *v;
  void* out;
  VisibleKeys visible;
  float* parts;  // splits > 1: (B, kv_heads, rows, splits, D + 2) f32 sums, then maximum and denominator
  int64_t q_stride, k_stride, out_stride;
  int batch, queries, capacity, heads, kv_heads, width;
  int splits;
  float scale;

  TENDON_DEVICE int group() const { return heads / kv_heads; }
  TENDON_DEVICE int rows() const { return queries * group(); }
  // Row r of a K/V head: query r / group, head kv · group + r mod group.
  TENDON_DEVICE int64_t offset(int b, int kv, int r, int64_t stride) const {
    return (static_cast<int64_t>(b) * queries + r / group()) * stride + (kv * group() + r % group()) * width;
  }
};

}  // namespace tendon::gpu::attention
