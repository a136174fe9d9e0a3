// A simulated card: gpu::Runtime over host memory and the SIMT shim, with faults to order. For tests only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "backend/gpu/cards.h"
#include "backend/gpu/runtime.h"
#include "backend/sim/simt.h"

namespace tendon::sim {

// Where a capture goes wrong.
enum class CaptureFault { kNone, kBegin, kNode, kEnd, kInstantiate };

struct SimOptions {
  simt::Order order = simt::Order::kForward;
  uint64_t seed = 1;
  gpu::Machine machine = {.vendor = "simulated",
                          .visibility = "nothing",
                          .cards = {{"simulated card", 90}},
                          .built_for = "80-real;90a-real"};
  size_t memory_bytes = size_t{8} << 30;
  bool library = true;

  uint64_t failing_allocation = 0;       // the n-th finds no memory; 0: none fails
  uint64_t failing_host_allocation = 0;  // of pinned memory, likewise
  uint64_t failing_copy = 0;             // the n-th to the card is refused
  uint64_t failing_halves = 0;           // the n-th launch of a run in halves is refused
  CaptureFault capture_fault = CaptureFault::kNone;
  size_t failing_node = 0;  // with kNode: which piece of work of a capture, from 0
};

// "reverse,no-library,allocation=3": orders of threads and faults, separated by commas. Throws Error(kBadUse) for a
// word it does not know.
SimOptions parse_sim_options(std::string_view words);

std::unique_ptr<gpu::Runtime> make_sim_runtime(const SimOptions& options, int device = 0);

}  // namespace tendon::sim
