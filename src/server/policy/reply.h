// What the server answers a request with.
#pragma once

#include <string>

#include "server/inference_queue.h"

namespace tendon {

// The reply map of openpi: actions (horizon, width) f64, policy_timing, server_timing with queue_ms besides, and
// prev_total_ms from the second reply of a connection on. `prev_total_ms` < 0: the first.
std::string encode_reply(const Outcome& outcome, double prev_total_ms);

}  // namespace tendon
