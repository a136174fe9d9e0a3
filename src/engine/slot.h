// A plan with its host staging, for engine and streams.
#pragma once

#include <memory>
#include <span>

#include "engine/engine.h"
#include "engine/staging.h"

namespace tendon {

struct Engine::Slot {
  Bucket bucket;
  std::unique_ptr<Plan> plan;
  HostInputs inputs;
  std::span<const float> actions;  // where a run leaves them
  bool kept = false;
};

// kNonFinite when one of them is not finite.
Status check_actions(std::span<const float> actions) noexcept;

}  // namespace tendon
