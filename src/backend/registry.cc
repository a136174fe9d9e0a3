#include "backend/registry.h"

#include <algorithm>
#include <string>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"

namespace tendon {

std::unique_ptr<Backend> make_backend_of(std::span<const BackendKind> kinds, std::string_view name,
                                         const BackendOptions& options) {
  std::string built = "cpu";
  for (const BackendKind& kind : kinds) built.append(", ").append(kind.name);
  const auto found = std::ranges::find_if(
      kinds, [&](const BackendKind& kind) { return name.empty() ? kind.is_present() : kind.name == name; });
  if (found != kinds.end()) return found->make(options);
  if (name.empty() || name == "cpu") return make_cpu_backend(options);
  if (name == "cuda" || name == "hip") {
    throw_device("This build of tendon has no {} backend; it has: {}. Choose one of these with --backend.", name,
                 built);
  }
  throw_bad_use("There is no backend '{}'; this build has: {}.", name, built);
}

}  // namespace tendon
