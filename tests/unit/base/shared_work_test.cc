#include "base/shared_work.h"

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace tendon {
namespace {

// Helpers on threads of their own, joined at the end.
class Helpers {
 public:
  ~Helpers() {
    for (std::thread& thread : threads_) thread.join();
  }
  template <class Work>
  void operator()(Work&& work) {
    threads_.emplace_back(std::forward<Work>(work));
  }
  size_t asked() const { return threads_.size(); }

 private:
  std::vector<std::thread> threads_;
};

TEST(SharedWork, RunsEveryPartOnce) {
  for (const int64_t helpers : {0, 1, 3, 8}) {
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      Helpers help;
      SharedWork::run(
          count, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; }, helpers, help);
      for (const auto& times : seen) ASSERT_EQ(times.load(), 1) << helpers << " helpers, " << count << " parts";
      EXPECT_LE(help.asked(), static_cast<size_t>(std::max<int64_t>(count - 1, 0))) << "no more than find a part";
    }
  }
}

TEST(SharedWork, HelpersWorkAtTheSameTime) {
  std::atomic<int> inside = 0;
  Helpers help;
  SharedWork::run(
      2,
      [&](int64_t) {
        ++inside;
        while (inside < 2) std::this_thread::yield();
      },
      1, help);
  EXPECT_EQ(inside, 2);
}

TEST(SharedWork, HelpMayComeNeverOrTooLate) {
  std::vector<std::function<void()>> late;
  {
    std::vector<int> done;
    SharedWork::run(
        5, [&](int64_t i) { done.push_back(static_cast<int>(i)); }, 3, [&](auto&& work) { late.emplace_back(work); });
    EXPECT_EQ(done, (std::vector<int>{0, 1, 2, 3, 4}));
  }
  EXPECT_EQ(late.size(), 3U);
  for (const auto& work : late) work();
}

TEST(SharedWork, ErrorsReachTheCallerWhenAllIsDone) {
  for (const int64_t helpers : {0, 2}) {
    std::atomic<int> done = 0;
    Helpers help;
    EXPECT_THROW(SharedWork::run(
                     20,
                     [&](int64_t i) {
                       ++done;
                       if (i == 7) throw std::runtime_error("seven");
                     },
                     helpers, help),
                 std::runtime_error);
    EXPECT_EQ(done, 20);
  }
}

}  // namespace
}  // namespace tendon
