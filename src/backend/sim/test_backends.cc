// make_backend for test programs: the cpu and the simulated card. Linked as an object, it takes the place of
// built_backends.cc. "sim" runs threads forward, "sim-reverse" and "sim-shuffled" as they say.
#include "backend/registry.h"
#include "backend/sim/sim_backend.h"

namespace tendon {
namespace {

template <simt::Order kOrder>
std::unique_ptr<Backend> make(const BackendOptions& options) {
  return sim::make_sim_backend({.order = kOrder}, options);
}
bool never() { return false; }  // to be asked for by name

}  // namespace

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
  static constexpr BackendKind kKinds[] = {{"sim", never, make<simt::Order::kForward>},
                                           {"sim-reverse", never, make<simt::Order::kReverse>},
                                           {"sim-shuffled", never, make<simt::Order::kShuffled>}};
  return make_backend_of(kKinds, name, options);
}

}  // namespace tendon
