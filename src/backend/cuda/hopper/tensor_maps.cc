#include "backend/cuda/hopper/tensor_maps.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "base/check.h"

namespace tendon::gpu::hopper {

std::optional<TensorMaps> TensorMaps::open() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (status != cudaSuccess) cudaGetLastError();
  if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) return {};
  return TensorMaps(reinterpret_cast<Encode>(function));
}

CUtensorMap TensorMaps::describe(void* data, std::span<const uint64_t> shape, std::span<const uint64_t> strides_bytes,
                                 std::span<const uint32_t> box, CUtensorMapSwizzle swizzle) const {
  CUtensorMap map;
  const uint32_t steps[5] = {1, 1, 1, 1, 1};
  const CUresult status = encode_(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<uint32_t>(shape.size()), data,
                                  shape.data(), strides_bytes.data(), box.data(), steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    std::string words;
    for (const uint64_t size : shape) words += fmt::format("{}{}", words.empty() ? "" : ", ", size);
    throw_device("describing a tensor of shape ({}), innermost first, to the card failed with driver status {}", words,
                 static_cast<int>(status));
  }
  return map;
}

}  // namespace tendon::gpu::hopper
