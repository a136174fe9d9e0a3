#include "backend/backend.h"

namespace tendon {

// Where the host computes, an operation takes the same time alone and among others: pieces are sums.
Status Executable::run_pieces(std::span<const size_t> ends, std::span<double> us) noexcept {
  try {
    OpTimes times;
    if (Status status = run(&times); !status.is_ok()) return status;
    size_t op = 0;
    for (size_t piece = 0; piece < us.size(); ++piece) {
      const size_t end = piece < ends.size() ? ends[piece] : times.duration_us.size();
      us[piece] = 0;
      for (; op < end && op < times.duration_us.size(); ++op) us[piece] += times.duration_us[op];
    }
    return Status::ok();
  } catch (const std::exception& error) {
    return Status::error(StatusCode::kInternal, "timing in pieces: %s", error.what());
  }
}

}  // namespace tendon
