// make_backend for test programs: the cpu and the simulated card, "sim" or "sim:reverse,no-library". Linked as an
// object, it takes the place of built_backends.cc.
#include "backend/registry.h"
#include "backend/sim/sim_backend.h"

namespace tendon {

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
  if (name == "sim" || name.starts_with("sim:"))
    return sim::make_sim_backend(sim::parse_sim_options(name.substr(std::min(name.size(), size_t{4}))), options);
  return make_backend_of({}, name, options);
}

}  // namespace tendon
