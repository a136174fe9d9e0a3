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
                             .without = options.without,
                             .log = options.log};
  const std::string card_name = parts.runtime->info().name;
  if (runtime != nullptr) *runtime = parts.runtime.get();
  if (sim.library && !options.portable_kernels) parts.library = make_sim_library();
  if (!options.portable_kernels) parts.table = gemm::Table::choose(options.gemm_table, card_name);
  return gpu::make_gpu_backend(std::move(parts));
}

}  // namespace tendon::sim
