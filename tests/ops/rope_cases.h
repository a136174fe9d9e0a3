// Cases of norm_qkv_rope on stacked weights, where a card's tiles rotate what they multiply.
#pragma once

#include <vector>

#include "values.h"

namespace tendon::op_check {

std::vector<Case> rope_cases();

}  // namespace tendon::op_check
