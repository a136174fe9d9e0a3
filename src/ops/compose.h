// What the fused operations mean.
#pragma once

#include <string_view>
#include <vector>

#include "ops/recorder.h"

namespace tendon {

// Records the composition of a fused operation under its own scope and returns true; returns false for a basic one.
bool expand(const Op& op, Recorder& recorder);

// The rows of x as a product with w takes them: as they are, or cast to the codes that w has.
Tensor operand(Recorder& recorder, const Tensor& x, const Tensor& w);

// Names of the fused operations.
std::vector<std::string_view> fused_operations();

}  // namespace tendon
