// The backend "sim": the card's backend on a simulated card. For tests only.
#pragma once

#include <memory>

#include "backend/registry.h"
#include "backend/sim/sim_runtime.h"

namespace tendon::sim {

// `runtime`: where to put a pointer to the backend's card, for its counters.
std::unique_ptr<Backend> make_sim_backend(const SimOptions& sim, const BackendOptions& options,
                                          gpu::Runtime** runtime = nullptr);

}  // namespace tendon::sim
