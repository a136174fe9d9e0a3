// tendon bench --streaming: frames that follow each other without a pause, two under way, beside plain calls.
#pragma once

#include <string>

#include "measure.h"
#include "session.h"
#include "workload.h"

namespace tendon::cli {

// Returns an exit code: kExitCheckFailed when a frame got other bytes than it does by itself.
int streaming(const ModelOptions& model, const WorkloadOptions& workload, const MeasureOptions& measure,
              const std::string& json);

}  // namespace tendon::cli
