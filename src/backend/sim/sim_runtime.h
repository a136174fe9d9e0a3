// A simulated card: gpu::Runtime over host memory and the SIMT shim, with faults to order. For tests only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "backend/backend.h"
#include "backend/gpu/runtime.h"
#include "backend/registry.h"
#include "backend/sim/simt.h"

namespace tendon::sim {

struct SimOptions {
  simt::Order order = simt::Order::kForward;
  uint64_t seed = 1;
  size_t memory_bytes = size_t{8} << 30;
  int architecture = 90;
};

std::unique_ptr<gpu::Runtime> make_sim_runtime(const SimOptions& options);

}  // namespace tendon::sim
