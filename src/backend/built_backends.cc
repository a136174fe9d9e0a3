// The backends that this build was made with.
#include "backend/registry.h"
#ifdef TENDON_WITH_CUDA
#include "backend/cuda/cuda_backend.h"
#endif
#ifdef TENDON_WITH_HIP
#include "backend/hip/hip_backend.h"
#endif

namespace tendon {

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
  static const std::vector<BackendKind> kinds = {
#ifdef TENDON_WITH_CUDA
      {.name = "cuda", .is_present = [] { return cuda_device_count() > 0; }, .make = make_cuda_backend},
#endif
#ifdef TENDON_WITH_HIP
      {.name = "hip", .is_present = [] { return hip_device_count() > 0; }, .make = make_hip_backend},
#endif
  };
  return make_backend_of(kinds, name, options);
}

}  // namespace tendon
