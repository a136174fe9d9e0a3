// tendon bench --sweep: one table over combinations of workload and model options, and its comparison with an earlier
// one.
#pragma once

#include <string>
#include <vector>

#include "measure.h"
#include "session.h"
#include "workload.h"

namespace tendon::cli {

struct SweepOptions {
  std::vector<std::string> ranges;  // "batch=1,2,4", "views=1..3"
  std::string baseline;             // file
  double tolerance_percent = 5;
};

// Returns an exit code: kExitCheckFailed when the baseline has a row that became slower. A row is slower when its
// median is more than the tolerance above the baseline's and their 95 % intervals do not meet. Throws Error(kBadUse)
// for ranges that make no sense, Error(kBadInput) for a baseline that is none.
int sweep(const SweepOptions& options, const ModelOptions& model, const WorkloadOptions& workload,
          const MeasureOptions& measure, const std::string& json);

}  // namespace tendon::cli
