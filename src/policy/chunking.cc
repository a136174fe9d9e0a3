#include "policy/chunking.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tendon {

std::vector<double> guidance_weights(GuidanceSchedule schedule, int64_t delay, int64_t overlap, int64_t horizon) {
  TENDON_CHECK(delay >= 0 && delay <= overlap && overlap <= horizon, "delay {}, overlap {}, horizon {}", delay, overlap,
               horizon);
  std::vector<double> weights(static_cast<size_t>(horizon), 0.0);
  std::fill_n(weights.begin(), delay, 1.0);
  for (int64_t i = delay; i < overlap; ++i) {
    const double c = static_cast<double>(overlap - i) / static_cast<double>(overlap - delay + 1);
    double& weight = weights[static_cast<size_t>(i)];
    if (schedule == GuidanceSchedule::kLinear) weight = c;
    if (schedule == GuidanceSchedule::kExp) weight = c * std::expm1(c) / std::expm1(1.0);
    if (schedule == GuidanceSchedule::kOnes) weight = 1.0;
  }
  return weights;
}

ChunkOverlap check_previous(const PreviousActions& previous, int64_t action_width, int64_t horizon,
                            const ChunkingRules& rules) {
  if (previous.rows < 1 || previous.rows > horizon) {
    throw_bad_input("the previous chunk has {} rows; expected 1 to {}, the horizon.", previous.rows, horizon);
  }
  if (std::ssize(previous.actions) != previous.rows * action_width) {
    throw_bad_input("the previous chunk has {} numbers in {} rows; expected {} in a row, as in a reply.",
                    previous.actions.size(), previous.rows, action_width);
  }
  const auto bad = std::ranges::find_if(previous.actions, [](double x) { return !std::isfinite(x); });
  if (bad != previous.actions.end()) {
    throw_bad_input("the previous chunk holds {} at index {}; every value must be finite.", *bad,
                    bad - previous.actions.begin());
  }
  if (previous.start < 0 || previous.start >= previous.rows) {
    throw_bad_input("the previous chunk has {} rows and starts at row {}: no row of it is left. Expected 0 to {}.",
                    previous.rows, previous.start, previous.rows - 1);
  }
  const int64_t left = previous.rows - previous.start;
  if (previous.delay < 0 || previous.delay > left) {
    throw_bad_input("a delay of {} rows was given, but {} rows of the previous chunk are left; expected 0 to {}.",
                    previous.delay, left, left);
  }
  if (rules.max_delay && previous.delay > *rules.max_delay) {
    throw_bad_input("a delay of {} rows was given, but the model is used with at most {}.", previous.delay,
                    *rules.max_delay);
  }
  return {.start = previous.start, .delay = previous.delay, .overlap = left};
}

std::vector<double> aligned_rows(const PreviousActions& previous, int64_t action_width, int64_t horizon) {
  std::vector<double> rows;
  for (int64_t i = 0; i < horizon; ++i) {
    const int64_t source = std::min(previous.start + i, previous.rows - 1);
    const auto begin = previous.actions.begin() + source * action_width;
    rows.insert(rows.end(), begin, begin + action_width);
  }
  return rows;
}

}  // namespace tendon
