// Cases of denoise_loop: the widths that the persistent kernels take, and narrow ones for every backend.
#pragma once

#include <vector>

#include "values.h"

namespace tendon::op_check {

std::vector<Case> denoise_loop_cases();

}  // namespace tendon::op_check
