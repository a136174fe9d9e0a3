// Memory for pictures of any size that the device reads where they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "backend/backend.h"
#include "base/tensor.h"

namespace tendon {

class FramePool;

// Room for one frame (ops/frame.h) in a pool, which it goes back to; or nothing. The pool outlives it.
class PooledFrame {
 public:
  PooledFrame() = default;
  PooledFrame(PooledFrame&& other) noexcept { swap(other); }
  PooledFrame& operator=(PooledFrame&& other) noexcept {
    swap(other);
    return *this;
  }
  ~PooledFrame();

  explicit operator bool() const { return pool_ != nullptr; }
  std::byte* data() const;
  const FramePool* pool() const { return pool_; }
  // What resize_frames calls it: the row of the pool's memory, from 1.
  int32_t number() const { return number_; }

 private:
  friend class FramePool;
  PooledFrame(FramePool& pool, int32_t number) : pool_(&pool), number_(number) {}
  void swap(PooledFrame& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(number_, other.number_);
  }
  FramePool* pool_ = nullptr;
  int32_t number_ = 0;
};

// One block of host memory that the device reads as well, handed out by the first gap that is large enough.
class FramePool {
 public:
  // At most 32 GB. Throws Error(kDevice) when there is not so much page-locked memory.
  FramePool(Backend& backend, size_t bytes);

  // Any thread. Nothing when there is no gap of that size now.
  PooledFrame take(int64_t bytes);
  // (rows, 16) u8.
  Tensor memory() const;

 private:
  friend class PooledFrame;
  void give_back(int32_t number) noexcept;

  HostBlock block_;
  int64_t rows_;
  std::mutex mutex_;
  std::map<int64_t, int64_t> used_;  // first row → the row behind the last
};

}  // namespace tendon
