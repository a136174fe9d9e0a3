// tendon bench --estimate: the times that a card's limits allow for a model, without the card and without weights.
#pragma once

#include <string>

#include "session.h"
#include "workload.h"

namespace tendon::cli {

// Prints a table, or JSON to `json` ("-": standard output). Throws Error(kBadUse) for an unknown card.
void estimate(const std::string& card, const ModelOptions& model, const WorkloadOptions& workload,
              const std::string& json);

}  // namespace tendon::cli
