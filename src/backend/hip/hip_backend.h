// The backend "hip": AMD cards.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/registry.h"

namespace tendon {

// 0 without cards, and without libamdhip64.
int hip_device_count();

// Throws Error(kDevice) when there is no card, or none that this build has kernels for.
std::unique_ptr<Backend> make_hip_backend(const BackendOptions& options);

}  // namespace tendon
