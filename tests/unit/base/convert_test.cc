#include "base/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <omp.h>

#include "base/check.h"

namespace tendon {
namespace {

TEST(Convert, WidensEveryFloatType) {
  std::vector<float> singles{1.5F, -2.25F, 1e-30F};
  EXPECT_EQ(widened(Tensor(DType::kF32, {3}, singles.data())), singles);
  std::vector<Bf16> brains{{0x3fc0}, {0xc010}, {0x0001}};
  EXPECT_EQ(widened(Tensor(DType::kBf16, {3}, brains.data())),
            (std::vector<float>{1.5F, -2.25F, std::ldexp(1.0F, -133)}));
  std::vector<uint16_t> halves{0x3e00, 0xc080, 0x0001};
  EXPECT_EQ(widened(Tensor(DType::kF16, {3}, halves.data())),
            (std::vector<float>{1.5F, -2.25F, std::ldexp(1.0F, -24)}));
}

TEST(Convert, LeavesNoGapsOfAStridedView) {
  std::vector<float> numbers{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const Tensor view = Tensor(DType::kF32, {3, 4}, numbers.data()).col_range(1, 2);
  const std::vector<float> want{1, 2, 5, 6, 9, 10};
  EXPECT_EQ(widened(view), want);
  std::vector<float> out(7, -1.0F);
  widen(view, out.data());
  EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 6), want);
  EXPECT_EQ(out[6], -1.0F) << "wrote past the end";

  std::vector<uint16_t> halves{0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600};  // 1 2 3 4 5 6
  EXPECT_EQ(widened(Tensor(DType::kF16, {2, 3}, halves.data()).col_range(2, 1)), (std::vector<float>{3, 6}));
}

TEST(Convert, RoundsToNearestEven) {
  std::vector<float> numbers{std::bit_cast<float>(0x3f808000U), std::bit_cast<float>(0x3f818000U), NAN, 3.0e38F};
  std::vector<Bf16> out(4);
  convert(Tensor(DType::kF32, {2, 2}, numbers.data()), DType::kBf16, out.data());
  EXPECT_EQ(out[0].bits, 0x3f80);
  EXPECT_EQ(out[1].bits, 0x3f82);
  EXPECT_TRUE(std::isnan(to_float(out[2])));
  EXPECT_EQ(out[3].bits, to_bf16(3.0e38F).bits);
}

// Large enough for several threads; the split must not show.
TEST(Convert, ManyThreadsGiveWhatOneGives) {
  constexpr int64_t kRows = 301;
  constexpr int64_t kCols = 1000;
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(-4.0F, 4.0F);
  std::vector<float> numbers(kRows * kCols);
  for (float& x : numbers) x = uniform(random);
  const Tensor view = Tensor(DType::kF32, {kRows, kCols}, numbers.data()).col_range(1, kCols - 3);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(4);
  std::vector<Bf16> rounded(static_cast<size_t>(view.elements()));
  convert(view, DType::kBf16, rounded.data());
  const std::vector<float> copied = widened(view);
  omp_set_num_threads(threads);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t col = 0; col < view.cols(); ++col) {
      const float want = numbers[static_cast<size_t>(row * kCols + 1 + col)];
      const auto at = static_cast<size_t>(row * view.cols() + col);
      ASSERT_EQ(copied[at], want);
      ASSERT_EQ(rounded[at].bits, to_bf16(want).bits);
    }
  }
}

TEST(Convert, RefusesIntegersAlsoWhenManyThreadsWork) {
  std::vector<uint8_t> bytes(1 << 20);
  std::vector<float> out(bytes.size());
  const int threads = omp_get_max_threads();
  omp_set_num_threads(4);
  const Tensor source(DType::kU8, {1024, 1024}, bytes.data());
  EXPECT_THROW(convert(source, DType::kF32, out.data()), Error);
  EXPECT_THROW(widen(source, out.data()), Error);
  omp_set_num_threads(threads);
  std::vector<float> numbers(4);
  EXPECT_THROW(convert(Tensor(DType::kF32, {4}, numbers.data()), DType::kF16, out.data()), Error);
}

TEST(InterleavePlanes, AnyNumberOfPixels) {
  for (const size_t pixels : {0, 1, 2, 15, 16, 17, 64, 100, 50176}) {
    std::vector<uint8_t> planes(3 * pixels), out(3 * pixels + 1, 77);
    for (size_t i = 0; i < planes.size(); ++i) planes[i] = static_cast<uint8_t>(31 * i + i / 251);
    interleave_planes(planes.data(), pixels, out.data());
    for (size_t i = 0; i < 3 * pixels; ++i) ASSERT_EQ(out[i], planes[i % 3 * pixels + i / 3]) << i << " of " << pixels;
    EXPECT_EQ(out.back(), 77);
  }
}

}  // namespace
}  // namespace tendon
