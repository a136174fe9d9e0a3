#include "backend/hip/hip_backend.h"

#include "backend/gpu/cards.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/hip/hipblaslt.h"
#include "backend/hip/library.h"
#include "backend/hip/runtime.h"

namespace tendon {
namespace {

gpu::Machine look_at_machine() {
  gpu::Machine machine{.vendor = "AMD",
                       .visibility = "HIP_VISIBLE_DEVICES",
                       .built_for = TENDON_HIP_ARCHITECTURES,
                       .lister = "rocminfo",
                       .prefix = "gfx",
                       .oldest = 942,
                       .rebuild = {}};
  const hip::Library* const library = hip::library(&machine.detail);
  if (library == nullptr) {
    machine.driver = gpu::Driver::kMissing;
    return machine;
  }
  int count = 0;
  const hip::Error status = library->hipGetDeviceCount(&count);
  if (status == hip::kNoDevice) return machine;
  if (status != hip::kSuccess) {
    machine.driver = gpu::Driver::kMissing;
    machine.detail = library->hipGetErrorString(status);
    return machine;
  }
  for (int device = 0; device < count; ++device)
    machine.cards.push_back({hip::card_name(*library, device), hip::architecture_of(*library, device)});
  return machine;
}

}  // namespace

int hip_device_count() {
  const hip::Library* const library = hip::library();
  int count = 0;
  return library != nullptr && library->hipGetDeviceCount(&count) == hip::kSuccess ? count : 0;
}

std::unique_ptr<Backend> make_hip_backend(const BackendOptions& options) {
  gpu::check_card(look_at_machine(), options.device);
  gpu::GpuBackendParts parts{.name = "hip",
                             .runtime = hip::make_hip_runtime(options.device),
                             .library = nullptr,
                             .graph = options.graph,
                             .without = options.without,
                             .log = options.log};
  if (!options.portable_kernels) {
    std::string why_not;
    parts.library = hip::open_hipblaslt(*parts.runtime, why_not);
    if (parts.library == nullptr) {
      log_info(options.log,
               "hipBLASLt cannot be opened ({}): products run on tendon's own kernels. Install it, or put its folder "
               "into LD_LIBRARY_PATH.",
               why_not);
    }
    const std::string card = parts.runtime->info().name;
    parts.table = gemm::Table::choose(options.gemm_table, card);
    if (!parts.table && options.gemm_table.empty()) {
      log_info(options.log, "no GEMM table for {}: products take {}; `tendon tune` makes a table", card,
               parts.library != nullptr ? "hipBLASLt's own choice" : "a default tile");
    }
  }
  return gpu::make_gpu_backend(std::move(parts));
}

}  // namespace tendon
