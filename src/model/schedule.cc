#include "model/schedule.h"

#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/dtype.h"
#include "model/weights/folds.h"

namespace tendon {

Schedule make_schedule(int64_t steps, TimeRule rule) {
  if (steps < 1 || steps > 1000)
    throw_bad_use("The number of denoise steps must lie between 1 and 1000, not {}.", steps);
  Schedule schedule;
  schedule.dt = static_cast<float>(-1.0 / static_cast<double>(steps));
  float time = 1.0F;
  for (int64_t step = 0; step < steps; ++step) {
    const double exact = 1.0 + static_cast<double>(step) * (-1.0 / static_cast<double>(steps));
    schedule.times.push_back(rule == TimeRule::kOpenpi ? time : static_cast<float>(exact));
    time = time + schedule.dt;
  }
  return schedule;
}

std::vector<float> time_embedding(float time, int64_t width, double min_period, double max_period) {
  const int64_t half = width / 2;
  TENDON_CHECK(width % 2 == 0 && half > 1, "a time embedding of width {}", width);
  std::vector<float> embedding(static_cast<size_t>(width));
  for (int64_t j = 0; j < half; ++j) {
    const double fraction = static_cast<double>(j) / static_cast<double>(half - 1);
    const double period = min_period * std::pow(max_period / min_period, fraction);
    const double angle = 2.0 * std::numbers::pi * static_cast<double>(time) / period;
    embedding[static_cast<size_t>(j)] = static_cast<float>(std::sin(angle));
    embedding[static_cast<size_t>(half + j)] = static_cast<float>(std::cos(angle));
  }
  return embedding;
}

std::vector<float> rope_table(int64_t positions, int64_t head_dim, double theta, RopeFrequencies frequencies) {
  const int64_t half = head_dim / 2;
  std::vector<float> table(static_cast<size_t>(positions * head_dim));
  for (int64_t i = 0; i < half; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (frequencies == RopeFrequencies::kBf16) frequency = round_to_bf16(static_cast<float>(frequency));
    for (int64_t position = 0; position < positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      table[static_cast<size_t>(position * head_dim + i)] = static_cast<float>(std::cos(angle));
      table[static_cast<size_t>(position * head_dim + half + i)] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

void switch_off(Folds& folds, std::string_view name) {
  std::string known;
  for (const FoldInfo& fold : kFolds) {
    if (fold.name == name) {
      folds.*fold.field = false;
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(fold.name);
  }
  throw_bad_use("There is no fold named '{}'. Known: {}.", name, known);
}

}  // namespace tendon
