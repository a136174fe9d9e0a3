// Kernel traces through NVIDIA's CUPTI, opened at run time.
#pragma once

#include "backend/device_tracer.h"

namespace tendon {

// No tracer, and why, where the library is absent, too old, or in use by a profiler.
TracerOrReason make_cupti_tracer();

}  // namespace tendon
