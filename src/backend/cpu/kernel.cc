#include "backend/cpu/kernel.h"

#include "backend/cpu/tile.h"

namespace tendon {
namespace {

TENDON_CPU_CLONES void find_range(const int32_t* values, int64_t count, int32_t* low, int32_t* high) {
  int32_t smallest = values[0];
  int32_t largest = values[0];
  for (int64_t i = 0; i < count; ++i) {
    smallest = values[i] < smallest ? values[i] : smallest;
    largest = values[i] > largest ? values[i] : largest;
  }
  *low = smallest;
  *high = largest;
}

}  // namespace

Status check_index(const Tensor& index, const char* what, int64_t low, int64_t high, const char* label) {
  const int64_t count = index.elements();
  if (count == 0) return Status::ok();
  int32_t smallest = 0;
  int32_t largest = 0;
  find_range(index.as<int32_t>(), count, &smallest, &largest);
  if (smallest >= low && largest < high) return Status::ok();
  return Status::error(StatusCode::kBadInput, "%s: %s holds %d, outside %lld..%lld", label, what,
                       smallest < low ? smallest : largest, static_cast<long long>(low),
                       static_cast<long long>(high - 1));
}

}  // namespace tendon
