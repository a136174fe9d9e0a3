// Cases of products with what follows them, one for each kind of tile: tests/data/gemm/hopper_tiles.csv says which.
#pragma once

#include <vector>

#include "values.h"

namespace tendon::op_check {

std::vector<Case> tile_cases();

}  // namespace tendon::op_check
