// The order of the operands of the persistent denoise kernel for many rows: every weight and every key has one place.
#include "backend/cuda/denoise_wide/layout.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace tendon::gpu::denoise::wide {
namespace {

TEST(WideDenoiseLayout, EveryWeightHasOnePlace) {
  struct Size {
    int rows, cols;
  };
  const std::array<Size, 4> sizes{{{kQkvWidth, kWidth}, {kWidth, kQWidth}, {2 * kMlp, kWidth}, {kWidth, kMlp}}};
  std::array<std::vector<char>, 4> seen;
  for (size_t i = 0; i < sizes.size(); ++i) {
    seen[i].assign(static_cast<size_t>(sizes[i].rows) * static_cast<size_t>(sizes[i].cols) / 8, 0);
  }
  for (int block = 0; block < kBlocks; ++block) {
    for (int chunk = 0; chunk < qkv_chunks(block) + kLaterChunks; ++chunk) {
      for (int unit = 0; unit < kChunkUnits; ++unit) {
        const Element e = weight_at(block, chunk, unit);
        const auto matrix = static_cast<size_t>(e.matrix);
        ASSERT_TRUE(e.row >= 0 && e.row < sizes[matrix].rows && e.col >= 0 && e.col < sizes[matrix].cols &&
                    e.col % 8 == 0)
            << block << " " << chunk << " " << unit;
        const size_t at =
            (static_cast<size_t>(e.row) * static_cast<size_t>(sizes[matrix].cols) + static_cast<size_t>(e.col)) / 8;
        ASSERT_EQ(seen[matrix][at]++, 0);
      }
    }
  }
  for (const std::vector<char>& matrix : seen) {
    for (const char count : matrix) ASSERT_EQ(count, 1);
  }
}

TEST(WideDenoiseLayout, ChunksOfTheBlocksFollowEachOther) {
  int next = 0;
  for (int block = 0; block < kBlocks; ++block) {
    EXPECT_EQ(first_chunk(block), next);
    next += qkv_chunks(block) + kLaterChunks;
  }
  EXPECT_EQ(size_t{static_cast<unsigned>(next)} * kChunkBytes, kLayerWeightBytes);
}

TEST(WideDenoiseLayout, EveryCachedElementHasOnePlace) {
  std::vector<char> keys(size_t{kPartKeys} * kHeadDim, 0);
  std::vector<char> values(keys.size(), 0);
  for (int chunk = 0; chunk < kKvChunks; ++chunk) {
    for (int unit = 0; unit < kChunkUnits; ++unit) {
      const KeyElement e = key_at(chunk, unit);
      for (int i = 0; i < 8; ++i) {
        const bool of_key = chunk < kKeyChunks;
        const int slot = e.slot + (of_key ? 0 : i);
        const int dim = e.dim + (of_key ? i : 0);
        ASSERT_TRUE(slot < kPartKeys && dim < kHeadDim);
        ASSERT_EQ((of_key ? keys : values)[static_cast<size_t>(slot * kHeadDim + dim)]++, 0);
      }
    }
  }
}

// Cached keys from the front and own keys from the back of the parts: each once, and never in the same slot.
TEST(WideDenoiseLayout, PartsHoldAllKeys) {
  for (const int rows : {1, 8, 13, 16, 17, 33, 50, 51, 56}) {
    for (const int cached : {1, 15, 16, 17, 276, 532, 788, 816, 960, 968, 1000, 1024}) {
      if (!keys_fit(cached, rows)) {
        EXPECT_GT(cached + rows, 968 + 50) << cached << " " << rows;
        continue;
      }
      std::vector<char> cached_seen(static_cast<size_t>(cached), 0);
      std::vector<char> own_seen(static_cast<size_t>(rows), 0);
      for (int part = 0; part < kParts; ++part) {
        const int slots = cached_slots(part, cached);
        const int own = own_keys(part, rows);
        ASSERT_LE(slots + own, kPartKeys);
        for (int s = 0; s < slots; ++s) {
          const int key = s * kParts + cached_offset(part);
          ASSERT_LT(key, cached);
          ASSERT_EQ(cached_seen[static_cast<size_t>(key)]++, 0);
        }
        for (int i = 0; i < own; ++i) {
          ASSERT_LT(own_row(part, i), rows);
          ASSERT_EQ(own_seen[static_cast<size_t>(own_row(part, i))]++, 0);
        }
      }
      for (const char count : cached_seen) ASSERT_EQ(count, 1) << cached << " " << rows;
      for (const char count : own_seen) ASSERT_EQ(count, 1) << cached << " " << rows;
    }
  }
}

}  // namespace
}  // namespace tendon::gpu::denoise::wide
