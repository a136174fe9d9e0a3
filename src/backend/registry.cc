#include "backend/registry.h"

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"

namespace tendon {

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
  if (name.empty() || name == "cpu") return make_cpu_backend(options);
  if (name == "cuda" || name == "hip") {
    throw_device("This build of tendon has no {} backend; it has: cpu. Choose --backend cpu.", name);
  }
  throw_bad_use("There is no backend '{}'; this build has: cpu.", name);
}

}  // namespace tendon
