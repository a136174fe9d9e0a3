// Descriptions of tensors in the card's memory for copies by TMA. The driver makes them; the program is not linked with
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <cuda.h>

namespace tendon::gpu::hopper {

class TensorMaps {
 public:
  // Nothing when the driver of the current card has no such function.
  static std::optional<TensorMaps> open();

  // A tensor of bf16, innermost dimension first and contiguous; strides of the others. What a box has outside of the
  // tensor is read as zero and not written. Throws Error(kDevice).
  CUtensorMap describe(void* data, std::span<const uint64_t> shape, std::span<const uint64_t> strides_bytes,
                       std::span<const uint32_t> box, CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) const;

 private:
  using Encode = decltype(&cuTensorMapEncodeTiled);
  explicit TensorMaps(Encode encode) : encode_(encode) {}
  Encode encode_;
};

}  // namespace tendon::gpu::hopper
