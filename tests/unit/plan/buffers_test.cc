#include "plan/buffers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace tendon {
namespace {

bool lifetimes_meet(const Lifetime& a, const Lifetime& b) { return a.first <= b.last && b.first <= a.last; }

bool memory_meets(size_t a, size_t a_bytes, size_t b, size_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

void expect_sound(const std::vector<Lifetime>& lives, const ArenaLayout& layout, size_t alignment) {
  ASSERT_EQ(layout.offsets.size(), lives.size());
  size_t sum = 0;
  size_t end = 0;
  for (size_t i = 0; i < lives.size(); ++i) {
    ASSERT_EQ(layout.offsets[i] % alignment, 0U) << i;
    ASSERT_LE(layout.offsets[i] + lives[i].bytes, layout.bytes) << i;
    sum += (lives[i].bytes + alignment - 1) / alignment * alignment;
    end = std::max(end, layout.offsets[i] + lives[i].bytes);
    for (size_t j = 0; j < i; ++j) {
      ASSERT_FALSE(lifetimes_meet(lives[i], lives[j]) &&
                   memory_meets(layout.offsets[i], lives[i].bytes, layout.offsets[j], lives[j].bytes))
          << "values " << i << " and " << j << " share memory while both are alive";
    }
  }
  ASSERT_LE(layout.bytes, sum) << "worse than no sharing at all";
  ASSERT_LT(layout.bytes, end + alignment) << "bytes beyond the last value";
  // No arena can be smaller than what is alive at one time.
  for (const Lifetime& at : lives) {
    size_t alive = 0;
    for (const Lifetime& life : lives) {
      if (life.first <= at.first && at.first <= life.last) alive += life.bytes;
    }
    ASSERT_GE(layout.bytes, alive);
  }
}

TEST(PlaceBuffers, RandomLifetimesNeverCollide) {
  std::mt19937 random(11);
  const auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); };
  for (int round = 0; round < 400; ++round) {
    const size_t alignment = size_t{1} << below(10);
    const int64_t ops = 1 + below(30);
    std::vector<Lifetime> lives(static_cast<size_t>(below(40)));
    for (Lifetime& life : lives) {
      const int64_t a = below(ops);
      const int64_t b = below(4) == 0 ? below(ops) : std::min(ops - 1, a + below(3));
      life = {static_cast<size_t>(below(5) == 0 ? below(3) : below(5000)), std::min(a, b), std::max(a, b)};
    }
    expect_sound(lives, place_buffers(lives, alignment), alignment);
    if (HasFatalFailure()) return;
  }
}

TEST(PlaceBuffers, TouchingLifetimesDoNotShare) {
  // The second value is written by the operation that reads the first one.
  const ArenaLayout layout = place_buffers({{256, 0, 1}, {256, 1, 2}}, 256);
  EXPECT_NE(layout.offsets[0], layout.offsets[1]);
  EXPECT_EQ(layout.bytes, 512U);
}

TEST(PlaceBuffers, SeparateLifetimesShare) {
  const ArenaLayout layout = place_buffers({{1000, 0, 1}, {1000, 2, 3}, {1000, 4, 5}}, 256);
  EXPECT_EQ(layout.bytes, 1024U);
  EXPECT_EQ(layout.offsets, (std::vector<size_t>{0, 0, 0}));
}

// A chain needs two buffers, however long it is.
TEST(PlaceBuffers, ChainsAlternate) {
  std::vector<Lifetime> chain;
  for (int64_t i = 0; i < 50; ++i) chain.push_back({256, i, i + 1});
  EXPECT_EQ(place_buffers(chain, 256).bytes, 512U);
}

TEST(PlaceBuffers, GapsAreFilled) {
  // Two long ones around a hole that a short one leaves.
  const ArenaLayout layout = place_buffers({{512, 0, 0}, {256, 0, 9}, {512, 1, 9}}, 256);
  EXPECT_EQ(layout.bytes, 768U);
}

TEST(PlaceBuffers, NothingNeedsNothing) {
  EXPECT_EQ(place_buffers({}, 256).bytes, 0U);
  EXPECT_EQ(place_buffers({{0, 0, 3}}, 256).bytes, 0U);
}

TEST(PlaceBuffers, SameInputSameLayout) {
  std::vector<Lifetime> lives;
  for (int64_t i = 0; i < 30; ++i) lives.push_back({static_cast<size_t>(100 * (i % 4)), i / 3, i / 3 + i % 5});
  EXPECT_EQ(place_buffers(lives, 64).offsets, place_buffers(lives, 64).offsets);
}

}  // namespace
}  // namespace tendon
