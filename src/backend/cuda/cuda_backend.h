// The CUDA backend: portable GPU kernels, products through cuBLASLt, one graph per plan.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/registry.h"

namespace tendon {

// Number of cards; 0 without a driver.
int cuda_device_count();

// Throws Error(kDevice) without a driver, for a wrong index, or without cuBLASLt.
std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options);

}  // namespace tendon
