// tendon run --replay: the calls of a recording once more.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "policy/policy.h"
#include "server/record.h"

namespace tendon::cli {

struct ReplayOptions {
  std::string directory;
  double tolerance = 0;  // largest difference of an action, the robot's units
  std::vector<int32_t> tokens;
  bool json = false;
};

// f(call, observation, noise) for each answered request, in order; returns how many others there were. `tokens` are
// used in place of a prompt. Throws what reading requests throws, and Error(kBadInput) where neither noise nor the
// number of its draw was recorded.
int64_t replay_calls(
    const Policy& policy, const std::vector<RecordedCall>& calls, const std::vector<int32_t>& tokens,
    const std::function<void(const RecordedCall&, const Observation&, std::span<const float> noise)>& f);

// Runs every answered request of the recording and compares the actions with the recorded ones. Exit code 0 if all are
// within the tolerance, else 1. Throws what reading a recording and Policy::infer throw.
int run_replay(Policy& policy, const ReplayOptions& options);

}  // namespace tendon::cli
