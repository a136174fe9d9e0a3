// The CPU backend: the reference for every other one, and an engine in its own right. One plain file per operation;
// matrix products through oneDNN.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/registry.h"

namespace tendon {

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options);

}  // namespace tendon
