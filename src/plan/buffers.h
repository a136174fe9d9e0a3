// Places values in one arena by their lifetimes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tendon {

// A value is alive in the operations first..last, both included.
struct Lifetime {
  size_t bytes = 0;
  int64_t first = 0, last = 0;
};

struct ArenaLayout {
  std::vector<size_t> offsets;  // one per value, multiples of the alignment
  size_t bytes = 0;
};

// Values whose lifetimes meet never overlap in memory. Greedy by size, largest first, lowest free offset.
ArenaLayout place_buffers(const std::vector<Lifetime>& lifetimes, size_t alignment);

}  // namespace tendon
