#pragma once

#include <functional>

#include "backend/gpu/stream.h"

namespace tendon::gpu {

// Launches one operation; captured in a graph or called directly.
using Launch = std::function<void(Stream)>;

}  // namespace tendon::gpu
