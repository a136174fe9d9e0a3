#include <charconv>

#include "backend/sim/sim_runtime.h"
#include "base/check.h"

namespace tendon {
namespace sim {

SimOptions parse_sim_options(std::string_view words) {
  SimOptions options;
  gpu::Machine& machine = options.machine;
  const auto capture = [&](CaptureFault fault) { options.capture_fault = fault; };
  while (!words.empty()) {
    const std::string_view item = words.substr(0, words.find(','));
    words.remove_prefix(std::min(words.size(), item.size() + 1));
    const std::string_view word = item.substr(0, item.find('='));
    uint64_t number = 0;
    if (word.size() < item.size()) std::from_chars(item.data() + word.size() + 1, item.data() + item.size(), number);
    if (word == "forward") {
      options.order = simt::Order::kForward;
    } else if (word == "reverse") {
      options.order = simt::Order::kReverse;
    } else if (word == "shuffled") {
      options.order = simt::Order::kShuffled;
      options.seed = number + 1;
    } else if (word == "no-driver") {
      machine.driver = gpu::Driver::kMissing;
      machine.detail = "the simulated machine has none";
    } else if (word == "old-driver") {
      machine.driver = gpu::Driver::kTooOld;
      machine.driver_version = "CUDA 11.4";
      machine.needed_version = "CUDA 13.0";
    } else if (word == "no-cards") {
      machine.cards.clear();
    } else if (word == "architecture") {
      machine.cards[0].architecture = static_cast<int>(number);
    } else if (word == "no-library") {
      options.library = false;
    } else if (word == "memory-kb") {
      options.memory_bytes = number << 10;
    } else if (word == "allocation") {
      options.failing_allocation = number;
    } else if (word == "host-allocation") {
      options.failing_host_allocation = number;
    } else if (word == "copy") {
      options.failing_copy = number;
    } else if (word == "capture-begin") {
      capture(CaptureFault::kBegin);
    } else if (word == "capture-node") {
      capture(CaptureFault::kNode);
      options.failing_node = number;
    } else if (word == "capture-end") {
      capture(CaptureFault::kEnd);
    } else if (word == "instantiate") {
      capture(CaptureFault::kInstantiate);
    } else {
      throw_bad_use("the simulated card does not know '{}'", item);
    }
  }
  return options;
}

}  // namespace sim

}  // namespace tendon
