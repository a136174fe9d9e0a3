// tendon run --replay: the calls of a recording once more.
#pragma once

#include <string>

#include "policy/policy.h"

namespace tendon::cli {

struct ReplayOptions {
  std::string directory;
  double tolerance = 0;  // largest difference of an action, the robot's units
  std::vector<int32_t> tokens;
  bool json = false;
};

// Runs every answered request of the recording and compares the actions with the recorded ones. Exit code 0 if all are
// within the tolerance, else 1. Throws what reading a recording and Policy::infer throw.
int run_replay(Policy& policy, const ReplayOptions& options);

}  // namespace tendon::cli
