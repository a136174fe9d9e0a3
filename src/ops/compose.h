// What the fused operations mean.
#pragma once

#include "ops/recorder.h"

namespace tendon {

// Records the composition of a fused operation under its own scope and returns true; returns false for a basic one.
bool expand(const Op& op, Recorder& recorder);

}  // namespace tendon
