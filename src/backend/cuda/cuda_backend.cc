#include "backend/cuda/cuda_backend.h"

#include <fmt/format.h>
#include <algorithm>
#include <iterator>

#include "backend/cuda/attention/operation.h"
#include "backend/cuda/cublaslt.h"
#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/denoise/operation.h"
#include "backend/cuda/hopper/products.h"
#include "backend/gpu/cards.h"
#include "backend/gpu/gpu_backend.h"

namespace tendon {
namespace {

std::string cuda_version(int number) { return fmt::format("CUDA {}.{}", number / 1000, number % 1000 / 10); }

// Reads attributes only: no context is made on any card.
gpu::Machine look_at_machine() {
  gpu::Machine machine{
      .vendor = "NVIDIA", .visibility = "CUDA_VISIBLE_DEVICES", .built_for = TENDON_CUDA_ARCHITECTURES};
  int driver = 0;
  int needed = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&needed);
  machine.driver_version = cuda_version(driver);
  machine.needed_version = cuda_version(needed);
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorInsufficientDriver && driver > 0) {
    machine.driver = gpu::Driver::kTooOld;
  } else if (status != cudaSuccess && status != cudaErrorNoDevice) {
    machine.driver = gpu::Driver::kMissing;
    machine.detail = driver == 0 ? "none answers" : cudaGetErrorString(status);
  }
  if (status != cudaSuccess) {
    cudaGetLastError();
    return machine;
  }
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    gpu::require(cudaGetDeviceProperties(&properties, device), "reading a card's properties");
    machine.cards.push_back({properties.name, 10 * properties.major + properties.minor});
  }
  return machine;
}

}  // namespace

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  gpu::check_card(look_at_machine(), options.device);
  gpu::GpuBackendParts parts{.name = "cuda",
                             .runtime = make_cuda_runtime(options.device),
                             .library = nullptr,
                             .graph = options.graph,
                             .without = options.without,
                             .log = options.log};
  if (!options.portable_kernels) {
    parts.own_ops = gpu::attention::attention_rows(*parts.runtime);
    std::ranges::move(gpu::denoise::denoise_loop_rows(), std::back_inserter(parts.own_ops));
    parts.library = CublasLt::open(*parts.runtime);
    if (parts.library == nullptr) {
      log_warning(options.log,
                  "cuBLASLt (libcublasLt.so.13 or .12) cannot be opened: products run on tendon's own, slower kernels. "
                  "Install the CUDA libraries, or put their folder into LD_LIBRARY_PATH.");
    }
    parts.special = gpu::hopper::open_products(*parts.runtime);
    const std::string card = parts.runtime->info().name;
    parts.table = gemm::Table::choose(options.gemm_table, card);
    if (!parts.table && options.gemm_table.empty()) {
      log_info(options.log, "no GEMM table for {}: products take the library's own choice; `tendon tune` makes one",
               card);
    }
  }
  return gpu::make_gpu_backend(std::move(parts));
}

}  // namespace tendon
