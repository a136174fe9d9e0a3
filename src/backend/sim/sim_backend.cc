#include "backend/sim/sim_backend.h"

#include "backend/gpu/gpu_backend.h"
#include "backend/sim/sim_library.h"

namespace tendon::sim {

std::unique_ptr<Backend> make_sim_backend(const SimOptions& sim, const BackendOptions&) {
  gpu::GpuBackendParts parts{.name = "sim", .runtime = make_sim_runtime(sim), .library = make_sim_library()};
  return gpu::make_gpu_backend(std::move(parts));
}

}  // namespace tendon::sim
