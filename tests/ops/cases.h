// Every shape that the real models use, and the edges: one row, odd widths, views with a row stride, masks.
#pragma once

#include <vector>

#include "values.h"

namespace tendon::op_check {

std::vector<Case> all_cases();

// A case whose index data is wrong: running it must give a Status that names the operation.
struct Fault {
  Case bad;
  std::string expected;  // part of the message
};
std::vector<Fault> all_faults();

}  // namespace tendon::op_check
