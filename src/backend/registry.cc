#include "backend/registry.h"

#include <string>

#include "backend/cpu/cpu_backend.h"
#include "base/check.h"
#ifdef TENDON_WITH_CUDA
#include "backend/cuda/cuda_backend.h"
#endif

namespace tendon {
namespace {

#ifdef TENDON_WITH_CUDA
constexpr const char* kBuilt = "cpu, cuda";
std::unique_ptr<Backend> make_gpu_or_null(std::string_view name, const BackendOptions& options) {
  const bool wanted = name == "cuda" || (name.empty() && cuda_device_count() > 0);
  return wanted ? make_cuda_backend(options) : nullptr;
}
#else
constexpr const char* kBuilt = "cpu";
std::unique_ptr<Backend> make_gpu_or_null(std::string_view, const BackendOptions&) { return nullptr; }
#endif

}  // namespace

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
  if (auto gpu = make_gpu_or_null(name, options)) return gpu;
  if (name.empty() || name == "cpu") return make_cpu_backend(options);
  if (name == "cuda" || name == "hip") {
    throw_device("This build of tendon has no {} backend; it has: {}. Choose one of these with --backend.", name,
                 kBuilt);
  }
  throw_bad_use("There is no backend '{}'; this build has: {}.", name, kBuilt);
}

}  // namespace tendon
