#include "floor.h"

#include <algorithm>

namespace tendon::cli {

Floor floor_of(const Plan& plan, const DeviceLimits& limits, DType precision) {
  Floor floor;
  if (limits.bf16_flops_per_s <= 0 || limits.read_bytes_per_s <= 0) {
    floor.missing = "nobody has measured the limits of this device";
  } else if (precision != DType::kBf16) {
    floor.missing = "the measured limits are those of bf16";
  } else {
    floor.ms = 0;
  }
  for (const StageRange& range : stage_ranges(plan)) {
    StageFloor stage{.name = range.name, .cost = {}};
    for (size_t i = range.begin; i < range.end; ++i) stage.cost += cost(plan.ops()[i]);
    if (floor.ms) {
      stage.ms =
          1e3 * std::max(stage.cost.flops / limits.bf16_flops_per_s, stage.cost.weight_bytes / limits.read_bytes_per_s);
      *floor.ms += stage.ms;
    }
    floor.stages.push_back(stage);
  }
  return floor;
}

}  // namespace tendon::cli
