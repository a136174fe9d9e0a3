#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace tendon {
namespace {

class Threads {
 public:
  explicit Threads(int n) : before_(omp_get_max_threads()) { omp_set_num_threads(n); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

TEST(ParallelFor, CoversEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    const Threads scope(threads);
    for (const int64_t count : {0, 1, 2, 3, 4, 7, 64, 65, 1000}) {
      for (const int64_t grain : {0, 1, 2, 10, 1000, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) seen[static_cast<size_t>(i)].fetch_add(1);
        });
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(seen[static_cast<size_t>(i)].load(), 1) << i << " of " << count << ", grain " << grain;
        }
      }
    }
  }
}

std::vector<std::pair<int64_t, int64_t>> ranges(int64_t count, int64_t grain) {
  std::mutex mutex;
  std::vector<std::pair<int64_t, int64_t>> seen;
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    seen.emplace_back(begin, end);
  });
  return seen;
}

TEST(ParallelFor, LittleWorkStaysOnOneThread) {
  const Threads scope(4);
  EXPECT_EQ(ranges(99, 100), (std::vector<std::pair<int64_t, int64_t>>{{0, 99}}));
  EXPECT_EQ(ranges(199, 100), (std::vector<std::pair<int64_t, int64_t>>{{0, 199}}));
  EXPECT_EQ(ranges(200, 100).size(), 2U);
  EXPECT_EQ(ranges(100000, 100).size(), 4U) << "never more ranges than threads";
}

TEST(ParallelFor, NothingToDoCallsNothing) {
  const Threads scope(4);
  EXPECT_TRUE(ranges(0, 1).empty());
}

}  // namespace
}  // namespace tendon
