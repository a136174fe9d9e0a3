#include <algorithm>
#include <mutex>

#include "tendon/client.hpp"

namespace tendon {

struct ActionQueue::State {
  Clock::duration period;
  mutable std::mutex mutex;
  PolicyReply chunk;
  Clock::time_point begin;  // when its row 0 is due
  int64_t held = 0;

  // The row whose period `at` lies in; before the chunk row 0.
  int64_t row_at(Clock::time_point at) const { return std::max<int64_t>((at - begin) / period, 0); }
};

ActionQueue::ActionQueue(Clock::duration period) : state_(std::make_unique<State>()) {
  if (period <= Clock::duration::zero()) throw std::invalid_argument("the period of an ActionQueue must be above 0");
  state_->period = period;
}

ActionQueue::~ActionQueue() = default;

void ActionQueue::put(PolicyReply chunk, Clock::time_point observed_at) {
  const std::lock_guard lock(state_->mutex);
  state_->chunk = std::move(chunk);
  state_->begin = observed_at;
}

ActionQueue::Next ActionQueue::next(Clock::time_point now) {
  const std::lock_guard lock(state_->mutex);
  const PolicyReply& chunk = state_->chunk;
  Next result;
  if (chunk.horizon == 0) return result;
  const int64_t due = state_->row_at(now);
  result.row = std::min(due, chunk.horizon - 1);
  result.is_held = due >= chunk.horizon;
  result.left = chunk.horizon - 1 - result.row;
  if (result.is_held) ++state_->held;
  const std::span<const double> row = chunk.row(result.row);
  result.action.assign(row.begin(), row.end());
  return result;
}

std::optional<ActionQueue::InUse> ActionQueue::in_use(Clock::time_point at) const {
  const std::lock_guard lock(state_->mutex);
  if (state_->chunk.horizon == 0) return {};
  return InUse{state_->chunk, std::min(state_->row_at(at), state_->chunk.horizon)};
}

int64_t ActionQueue::held_steps() const {
  const std::lock_guard lock(state_->mutex);
  return state_->held;
}

}  // namespace tendon
