// The backends of this build, by name.
#pragma once

#include <memory>
#include <string_view>

#include "backend/backend.h"

namespace tendon {

struct BackendOptions {
  int threads = 0;  // CPU: 0 takes all cores this process may use
  int device = 0;   // GPU index
};

// "cpu", or "" for the best one present. Throws Error(kBadUse) for a name this build does not know, listing those it
// does, and Error(kDevice) when the device is missing.
std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options = {});

}  // namespace tendon
