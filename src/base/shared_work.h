// Parts of one piece of work, shared between the caller and threads that happen to be free.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>

namespace tendon {

// Calls part(0) … part(count - 1), each once, on any threads, and returns when all are done; throws what a part threw.
using RunParts = std::function<void(int64_t count, const std::function<void(int64_t)>& part)>;

class SharedWork {
 public:
  // The caller runs parts itself. help(work) is called `helpers` times and shall get work() called by another thread,
  // soon or never.
  template <class Help>
  static void run(int64_t count, const std::function<void(int64_t)>& part, int64_t helpers, Help&& help) {
    const auto work = std::make_shared<SharedWork>(count, part);
    for (int64_t i = 0; i < helpers && i + 1 < count; ++i) help([work] { work->work(); });
    work->work();
    work->wait();
  }

  SharedWork(int64_t count, const std::function<void(int64_t)>& part) : count_(count), part_(part) {}

 private:
  // Whoever comes when all parts are taken finds none, and `part_` may be gone by then.
  void work() noexcept {
    int64_t done = 0;
    std::exception_ptr error;
    for (int64_t i = next_++; i < count_; i = next_++, ++done) {
      try {
        part_(i);
      } catch (...) {
        error = std::current_exception();
      }
    }
    if (done == 0) return;
    const std::lock_guard lock(mutex_);
    done_ += done;
    if (error) error_ = error;
    if (done_ == count_) all_done_.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    all_done_.wait(lock, [&] { return done_ == count_; });
    if (error_) std::rethrow_exception(error_);
  }

  const int64_t count_;
  const std::function<void(int64_t)>& part_;
  std::atomic<int64_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable all_done_;
  int64_t done_ = 0;
  std::exception_ptr error_;
};

}  // namespace tendon
