// The order of the persistent denoise kernel's operands: every weight and every cached key has exactly one place.
#include "backend/cuda/denoise/layout.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace tendon::gpu::denoise {
namespace {

TEST(DenoiseLayout, EveryWeightHasOnePlace) {
  struct Size {
    int rows, cols;
  };
  const std::array<Size, 4> sizes{{{kQkvWidth, kWidth}, {kWidth, kQWidth}, {2 * kMlp, kWidth}, {kWidth, kMlp}}};
  std::array<std::vector<char>, 4> seen;
  for (size_t i = 0; i < sizes.size(); ++i) {
    seen[i].assign(static_cast<size_t>(sizes[i].rows) * static_cast<size_t>(sizes[i].cols) / 2, 0);
  }
  for (int block = 0; block < kBlocks; ++block) {
    for (int chunk = 0; chunk < kWeightChunks; ++chunk) {
      for (int fragment = 0; fragment < kFragments; ++fragment) {
        for (int lane = 0; lane < 32; ++lane) {
          for (int word = 0; word < 4; ++word) {
            const Element e = weight_at(block, chunk, fragment, lane, word);
            const auto matrix = static_cast<size_t>(e.matrix);
            ASSERT_TRUE(e.row >= 0 && e.row < sizes[matrix].rows && e.col >= 0 && e.col + 1 < sizes[matrix].cols &&
                        e.col % 2 == 0)
                << block << " " << chunk << " " << fragment << " " << lane << " " << word;
            const size_t at =
                (static_cast<size_t>(e.row) * static_cast<size_t>(sizes[matrix].cols) + static_cast<size_t>(e.col)) / 2;
            ASSERT_EQ(seen[matrix][at]++, 0);
          }
        }
      }
    }
  }
  for (const std::vector<char>& matrix : seen) {
    for (const char count : matrix) ASSERT_EQ(count, 1);
  }
}

TEST(DenoiseLayout, EveryCachedKeyHasOnePlace) {
  for (const int first : {0, kKeyTiles}) {  // K, V
    std::vector<char> seen(size_t{kPartKeys} * kHeadDim, 0);
    for (int chunk = first; chunk < first + kKeyTiles; ++chunk) {
      for (int fragment = 0; fragment < kFragments; ++fragment) {
        for (int lane = 0; lane < 32; ++lane) {
          for (int half = 0; half < 8; ++half) {
            const KeyElement e = key_at(chunk, fragment, lane, half);
            ASSERT_TRUE(e.slot >= 0 && e.slot < kPartKeys && e.dim >= 0 && e.dim < kHeadDim);
            ASSERT_EQ(seen[static_cast<size_t>(e.slot * kHeadDim + e.dim)]++, 0);
          }
        }
      }
    }
  }
}

TEST(DenoiseLayout, PartsHoldAllKeysAndTheRowsOwn) {
  for (int keys = 1; keys <= kMaxCachedKeys; ++keys) {
    int all = 0;
    for (int part = 0; part < kParts; ++part) {
      const int slots = cached_slots(part, keys);
      all += slots;
      ASSERT_LT(slots, kPartKeys) << keys;  // the last slot is the own key's
      if (slots > 0) {
        ASSERT_LT((slots - 1) * kParts + part, keys);
      }
    }
    ASSERT_EQ(all, keys);
  }
  for (int part = 0; part < kParts; ++part) EXPECT_EQ(own_row(kParts - 1 - part), part);
}

}  // namespace
}  // namespace tendon::gpu::denoise
