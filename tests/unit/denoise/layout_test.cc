// The order of the persistent denoise kernel's operands: every weight and every cached key has exactly one place.
#include "backend/cuda/denoise/layout.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

#include "base/dtype.h"

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

// What the kernel makes of a word of codes (weights.cuh): the numbers of its two words, over 128.
std::array<float, 4> numbers_of(uint32_t word) {
  const uint32_t exchanged = (word & 0x00ff00ffU) << 8 | (word & 0xff00ff00U) >> 8;
  std::array<float, 4> numbers{};
  for (size_t i = 0; i < 4; ++i) {
    const uint32_t pair = (i < 2 ? word : exchanged) & kCodeMask;
    numbers[i] = to_float(Bf16{static_cast<uint16_t>(pair >> (16 * (i % 2)))}) *
                 to_float(Bf16{static_cast<uint16_t>(kCodeLift >> (16 * (i % 2)))});
  }
  return numbers;
}

TEST(DenoiseLayout, CodesComeBackAsNumbers) {
  for (int code = -127; code <= 127; ++code) {
    for (const auto& [first, second] : std::array<std::array<std::array<int, 2>, 2>, 2>{
             {{{{code, 127}, {-127, -code}}}, {{{-1, code}, {code, 0}}}}}) {
      const std::array<float, 4> numbers = numbers_of(code_word({first[0], first[1]}, {second[0], second[1]}));
      const std::array<int, 4> wanted{first[0], first[1], second[0], second[1]};
      for (size_t i = 0; i < 4; ++i)
        ASSERT_EQ(numbers[i] * kLiftedCodes, static_cast<float>(wanted[i])) << code << " " << i;
    }
  }
}

// A chunk of codes has a place for each word, where the stages look for it.
TEST(DenoiseLayout, CodesHaveOnePlaceEach) {
  for (const int chunk : {0, kQkvChunks - 1, kQkvChunks, kWeightChunks - 1}) {
    std::vector<char> seen(weight_chunk_bytes(true) / 4);
    for (int fragment = 0; fragment < kFragments; ++fragment) {
      for (int lane = 0; lane < 32; ++lane) {
        for (int half = 0; half < 2; ++half) {
          const auto place = static_cast<size_t>(code_place(chunk, fragment, lane, half));
          ASSERT_EQ(place % 4, 0U);
          ASSERT_EQ(seen.at(place / 4)++, 0);
        }
      }
    }
  }
  // Lane 9 has fragments 6 and 7 side by side.
  EXPECT_EQ(code_place(0, 6, 9, 0), 3 * kFragmentBytes + 9 * 16);
  EXPECT_EQ(code_place(0, 7, 9, 1), 3 * kFragmentBytes + 9 * 16 + 12);
  // Of the fifth unit, lane 9 of warp 3 has k steps 0 to 7 side by side: step 5 lies in bytes 9 · 8 on of the 29th
  // group of 128 bytes, that is in the first half of lane 4 + 8 · 29 of the fragments.
  constexpr int kAt = (3 * 8 + 5) * 8 + 4;
  static_assert(kAt * 16 + 8 == (3 * 8 + 5) * 128 + 9 * 8);
  EXPECT_EQ(code_place(kQkvChunks - 1, kAt / 32, kAt % 32, 1), (3 * 16 + 9) * 32 + 5 * 4);
}

TEST(DenoiseLayout, EveryRowHasOneScale) {
  std::vector<char> seen(kLayerScales);
  for (const auto& [matrix, rows] : std::array<std::pair<Matrix, int>, 4>{
           {{Matrix::kQkv, kQkvWidth}, {Matrix::kOut, kWidth}, {Matrix::kGateUp, 2 * kMlp}, {Matrix::kDown, kWidth}}}) {
    for (int row = 0; row < rows; ++row) ASSERT_EQ(seen.at(static_cast<size_t>(scale_of({matrix, row, 0})))++, 0);
  }
  for (const char count : seen) ASSERT_EQ(count, 1);
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
