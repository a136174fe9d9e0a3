// gpu::Runtime over libamdhip64.
#pragma once

#include <memory>
#include <string>

#include "backend/gpu/runtime.h"
#include "backend/hip/library.h"

namespace tendon::hip {

// 942 for "gfx942": what the card says of itself is 9.4, and that is the only card of its kind. 0: none that tendon
// knows.
int architecture_of(const Library& hip, int device);
std::string card_name(const Library& hip, int device);

// Makes the card current for the calling thread, loads the kernels onto it and opens a stream.
std::unique_ptr<gpu::Runtime> make_hip_runtime(int device);

}  // namespace tendon::hip
