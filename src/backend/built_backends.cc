// The backends that this build was made with.
#include "backend/registry.h"
#ifdef TENDON_WITH_CUDA
#include "backend/cuda/cuda_backend.h"
#endif

namespace tendon {

std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options) {
#ifdef TENDON_WITH_CUDA
  static constexpr BackendKind kKinds[] = {
      {.name = "cuda", .is_present = [] { return cuda_device_count() > 0; }, .make = make_cuda_backend}};
  return make_backend_of(kKinds, name, options);
#else
  return make_backend_of({}, name, options);
#endif
}

}  // namespace tendon
