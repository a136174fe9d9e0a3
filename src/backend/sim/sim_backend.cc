#include "backend/sim/sim_backend.h"

#include "backend/gpu/gpu_backend.h"
#include "backend/sim/sim_library.h"

namespace tendon::sim {

std::unique_ptr<Backend> make_sim_backend(const SimOptions& sim, const BackendOptions& options,
                                          gpu::Runtime** runtime) {
  gpu::check_card(sim.machine, options.device);
  gpu::GpuBackendParts parts{.name = "sim",
                             .runtime = make_sim_runtime(sim, options.device),
                             .library = nullptr,
                             .graph = options.graph,
                             .log = options.log};
  if (runtime != nullptr) *runtime = parts.runtime.get();
  if (sim.library && !options.portable_kernels) parts.library = make_sim_library();
  if (!options.portable_kernels && !options.gemm_table.empty()) parts.table = gemm::Table::read(options.gemm_table);
  return gpu::make_gpu_backend(std::move(parts));
}

}  // namespace tendon::sim
