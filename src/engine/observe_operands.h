// Finds static scales: how large the operands of a call were.
#pragma once

#include "model/weights/static_scales.h"
#include "plan/plan.h"

namespace tendon {

// Raises `maxima` to what the last run of an engine with EngineOptions::operand_taps had, and counts the observation.
// Throws Error(kBadInput) naming an operand that is not finite.
void observe_operands(const Plan& plan, OperandMaxima& maxima);

}  // namespace tendon
