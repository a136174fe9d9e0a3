// The backends that this build was made with.
#include "backend/registry.h"
#if defined(TENDON_WITH_CUDA)
#include "backend/cuda/cuda_backend.h"
#elif defined(TENDON_WITH_HIP)
#include "backend/hip/hip_backend.h"
#endif

namespace tendon {

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
#if defined(TENDON_WITH_CUDA)
  static constexpr BackendKind kKinds[] = {
      {.name = "cuda", .is_present = [] { return cuda_device_count() > 0; }, .make = make_cuda_backend}};
#elif defined(TENDON_WITH_HIP)
  static constexpr BackendKind kKinds[] = {
      {.name = "hip", .is_present = [] { return hip_device_count() > 0; }, .make = make_hip_backend}};
#else
  static constexpr std::span<const BackendKind> kKinds = {};
#endif
  return make_backend_of(kKinds, name, options);
}

}  // namespace tendon
