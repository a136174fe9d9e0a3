// Cases of resize_frames: pools of frames with made-up weights.
#pragma once

#include <vector>

#include "cases.h"
#include "values.h"

namespace tendon::op_check {

std::vector<Case> frame_cases();
std::vector<Fault> frame_faults();

}  // namespace tendon::op_check
