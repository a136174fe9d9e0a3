// tendon tune --calibrate: finds static scales for 8-bit operands.
#pragma once

#include <cstdint>
#include <string>

#include "policy_options.h"
#include "session.h"
#include "workload.h"

namespace tendon::cli {

struct CalibrateOptions {
  std::string from;  // a recording of tendon serve, or "workload": made observations
  PolicyArguments policy;
  WorkloadOptions workload;
  int64_t observations = 32;  // at most
  std::string out;            // empty: beside the checkpoint
};

// Runs the observations and keeps the largest magnitude of each operand's columns in a file. Throws Error(kBadUse) for
// options that do not go together, Error(kBadInput) when there is no observation or an operand is not finite.
int run_calibrate(const ModelOptions& model, const CalibrateOptions& options);

}  // namespace tendon::cli
