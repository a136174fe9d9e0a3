#include "backend/backend.h"

#include <cstdlib>

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

void* Backend::allocate_host(size_t bytes) {
  constexpr size_t kAlignmentBytes = 256;
  void* const memory =
      std::aligned_alloc(kAlignmentBytes, (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes);
  if (memory == nullptr) throw_device("Not enough host memory: {} MB are needed at once.", (bytes >> 20) + 1);
  return memory;
}

void Backend::release_host(void* memory) noexcept { std::free(memory); }

}  // namespace tendon
