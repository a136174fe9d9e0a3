// The least time that a device's measured limits allow for a plan.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "engine/engine.h"
#include "ops/cost.h"

namespace tendon::cli {

// What a stage must do, and the longer of its arithmetic at the highest product rate and its weights at the highest
// read rate. Activations are taken to stay in the caches, and stages not to overlap: each needs the one before it.
struct StageFloor {
  std::string name;
  Cost cost;
  double ms = 0;  // 0 when the device has no measured limits
};

struct Floor {
  std::vector<StageFloor> stages;
  std::optional<double> ms;  // their sum
  std::string missing;       // why there is none
};

// Limits are of bf16 products: plans of other precisions have no floor.
Floor floor_of(const Plan& plan, const DeviceLimits& limits, DType precision);

}  // namespace tendon::cli
