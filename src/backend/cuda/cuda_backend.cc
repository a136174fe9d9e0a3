#include "backend/cuda/cuda_backend.h"

#include "backend/cuda/cublaslt.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/gpu/gpu_backend.h"
#include "base/check.h"

namespace tendon {

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    throw_device("No usable NVIDIA card: {}. Check the driver with nvidia-smi, or choose --backend cpu.",
                 status == cudaSuccess ? "none is visible" : cudaGetErrorString(status));
  }
  if (options.device < 0 || options.device >= count)
    throw_device("There is no card {}; this machine has {} (0 to {}).", options.device, count, count - 1);
  gpu::GpuBackendParts parts{.name = "cuda", .runtime = make_cuda_runtime(options.device), .library = nullptr};
  parts.library = std::make_unique<CublasLt>(*parts.runtime);
  return gpu::make_gpu_backend(std::move(parts));
}

}  // namespace tendon
