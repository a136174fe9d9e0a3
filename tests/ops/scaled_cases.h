// Cases of operations on 8-bit codes with a scale for each row.
#pragma once

#include <vector>

#include "values.h"

namespace tendon::op_check {

std::vector<Case> scaled_cases();

}  // namespace tendon::op_check
