// Which keys a query of the operation attention sees, as kernels are told.
#pragma once

#include "backend/gpu/gpu_rt.h"
#include "ops/ops.h"

namespace tendon::gpu {

struct VisibleKeys {
  const int32_t* key_len;   // (B), null: every key
  const uint8_t* key_mask;  // (B, capacity), null: none is masked
  int64_t mask_stride;
  int capacity, extra_keys, leading_block;

  // How many keys query t of sample b may see, counted from the first; later queries see no fewer.
  TENDON_DEVICE int of(int b, int t) const {
    const int len = key_len == nullptr ? capacity : key_len[b] + (t < leading_block ? leading_block : extra_keys);
    return len < capacity ? len : capacity;
  }
  TENDON_DEVICE bool masked(int b, int key) const {
    return key_mask != nullptr && key_mask[b * mask_stride + key] == 0;
  }
};

inline VisibleKeys visible_keys(const Attention& a) {
  return {.key_len = a.key_len.as<const int32_t>(),
          .key_mask = a.key_mask.as<const uint8_t>(),
          .mask_stride = a.key_mask.row_stride,
          .capacity = static_cast<int>(a.k.shape[1]),
          .extra_keys = a.extra_keys,
          .leading_block = a.leading_block};
}

}  // namespace tendon::gpu
