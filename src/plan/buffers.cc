#include "plan/buffers.h"

#include <algorithm>
#include <numeric>

namespace tendon {

ArenaLayout place_buffers(const std::vector<Lifetime>& lifetimes, size_t alignment) {
  ArenaLayout layout;
  layout.offsets.assign(lifetimes.size(), 0);
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });

  struct Placed {
    size_t begin, end;
    int64_t first, last;
  };
  std::vector<Placed> placed;  // sorted by begin
  placed.reserve(lifetimes.size());
  for (const size_t index : order) {
    const Lifetime& value = lifetimes[index];
    const size_t bytes = (value.bytes + alignment - 1) / alignment * alignment;
    size_t offset = 0;
    for (const Placed& other : placed) {
      if (other.last < value.first || value.last < other.first) continue;
      if (offset + bytes <= other.begin) break;
      offset = std::max(offset, other.end);
    }
    layout.offsets[index] = offset;
    layout.bytes = std::max(layout.bytes, offset + bytes);
    const Placed entry{offset, offset + bytes, value.first, value.last};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), entry,
                                   [](const Placed& a, const Placed& b) { return a.begin < b.begin; }),
                  entry);
  }
  return layout;
}

}  // namespace tendon
