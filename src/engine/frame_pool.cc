#include "engine/frame_pool.h"

#include <iterator>
#include <limits>

#include "base/check.h"
#include "ops/frame.h"

namespace tendon {

PooledFrame::~PooledFrame() {
  if (pool_ != nullptr) pool_->give_back(number_);
}

std::byte* PooledFrame::data() const {
  return static_cast<std::byte*>(pool_->block_.data()) + number_ * kFrameAlignment;
}

FramePool::FramePool(Backend& backend, size_t bytes)
    : block_(backend, bytes), rows_(static_cast<int64_t>(bytes) / kFrameAlignment) {
  TENDON_CHECK(rows_ <= std::numeric_limits<int32_t>::max(), "a pool of {} bytes", bytes);
  used_.emplace(0, 1);  // frame 0 is no frame
}

PooledFrame FramePool::take(int64_t bytes) {
  const int64_t wanted = frame_aligned(bytes) / kFrameAlignment;
  const std::lock_guard lock(mutex_);
  for (auto at = used_.begin(); at != used_.end(); ++at) {
    const auto next = std::next(at);
    const int64_t begin = at->second;
    if (wanted > (next == used_.end() ? rows_ : next->first) - begin) continue;
    used_.emplace_hint(next, begin, begin + wanted);
    return {*this, static_cast<int32_t>(begin)};
  }
  return {};
}

void FramePool::give_back(int32_t number) noexcept {
  const std::lock_guard lock(mutex_);
  used_.erase(number);
}

Tensor FramePool::memory() const { return {DType::kU8, {rows_, kFrameAlignment}, block_.data()}; }

}  // namespace tendon
