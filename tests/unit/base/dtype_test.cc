#include "base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

namespace tendon {
namespace {

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

static_assert(to_bf16(1.0F).bits == 0x3f80);
static_assert(half_to_float(0x3c00) == 1.0F);
static_assert(sizeof(Bf16) == 2);

TEST(DType, BytesAndNames) {
  const struct {
    DType dtype;
    size_t bytes;
    std::string_view name;
  } rows[] = {{DType::kF64, 8, "f64"},   {DType::kI64, 8, "i64"},   {DType::kF32, 4, "f32"}, {DType::kI32, 4, "i32"},
              {DType::kF16, 2, "f16"},   {DType::kBf16, 2, "bf16"}, {DType::kU8, 1, "u8"},   {DType::kBool, 1, "bool"},
              {DType::kE4m3, 1, "e4m3"}, {DType::kI8, 1, "i8"}};
  for (const auto& row : rows) {
    EXPECT_EQ(dtype_bytes(row.dtype), row.bytes) << row.name;
    EXPECT_EQ(dtype_name(row.dtype), row.name);
  }
}

TEST(E4m3, ValuesOfTheFormat) {
  EXPECT_EQ(to_float(E4m3{0x00}), 0.0F);
  EXPECT_EQ(to_float(E4m3{0x01}), 0x1p-9F);  // the smallest
  EXPECT_EQ(to_float(E4m3{0x07}), 0x1.cp-7F);
  EXPECT_EQ(to_float(E4m3{0x08}), 0x1p-6F);  // the smallest normal one
  EXPECT_EQ(to_float(E4m3{0x38}), 1.0F);
  EXPECT_EQ(to_float(E4m3{0x7e}), 448.0F);
  EXPECT_EQ(to_float(E4m3{0xb8}), -1.0F);
  EXPECT_TRUE(std::isnan(to_float(E4m3{0x7f})) && std::isnan(to_float(E4m3{0xff})));
}

TEST(E4m3, ReadingAndWritingIsTheIdentity) {
  for (uint32_t bits = 0; bits < 256; ++bits) {
    if (bits == 0x80) continue;
    EXPECT_EQ(to_e4m3(to_float(E4m3{static_cast<uint8_t>(bits)})).bits, bits);
  }
}

TEST(E4m3, ZeroHasOneCode) {
  for (const float value : {0.0F, -0.0F, -0x1p-10F, -0x1p-140F}) EXPECT_EQ(to_e4m3(value).bits, 0) << value;
}

// Against all codes: none is nearer, and of two as near ones it is the even one.
TEST(E4m3, RoundsToTheNearestCode) {
  std::vector<float> values;
  for (uint8_t code = 0; code < 0x7e; ++code) {
    const float low = to_float(E4m3{code});
    const float high = to_float(E4m3{static_cast<uint8_t>(code + 1)});
    const float middle = (low + high) / 2;
    values.insert(values.end(), {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 500.0F)});
  }
  std::mt19937 random(7);
  std::uniform_real_distribution<float> exponents(-40.0F, 10.0F);
  for (int i = 0; i < 20000; ++i) values.push_back(std::exp2(exponents(random)));
  for (const float value : values) {
    const uint8_t code = to_e4m3(value).bits;
    ASSERT_LT(code, 0x7f) << value;
    const float distance = std::fabs(to_float(E4m3{code}) - value);
    for (uint8_t other = 0; other < 0x7f; ++other) {
      const float other_distance = std::fabs(to_float(E4m3{other}) - value);
      ASSERT_LE(distance, other_distance) << value << " became " << int{code} << ", nearer is " << int{other};
      if (other != code && other_distance == distance) {
        ASSERT_EQ(code % 2, 0) << value;
      }
    }
    EXPECT_EQ(to_e4m3(-value).bits, code == 0 ? 0 : code | 0x80);
  }
}

TEST(E4m3, LargeNumbersSaturateAndNaNStays) {
  for (const float value : {448.0F, 460.0F, 1e30F, INFINITY}) EXPECT_EQ(to_e4m3(value).bits, 0x7e) << value;
  EXPECT_EQ(to_e4m3(-INFINITY).bits, 0xfe);
  EXPECT_TRUE(std::isnan(to_float(to_e4m3(NAN))));
}

TEST(I8, TiesGoToEvenAndLargeNumbersSaturate) {
  const std::pair<float, int> rows[] = {{0.5F, 0},     {1.5F, 2},       {2.5F, 2},       {-0.5F, 0},       {-1.5F, -2},
                                        {126.4F, 126}, {127.4F, 127},   {128.0F, 127},   {-128.0F, -127},  {1e30F, 127},
                                        {0.49F, 0},    {-126.6F, -127}, {INFINITY, 127}, {-INFINITY, -127}};
  for (const auto& [in, out] : rows) EXPECT_EQ(to_i8(in), out) << in;
}

TEST(RowScale, PutsTheLargestNumberAtTheLargestCode) {
  EXPECT_EQ(RowScale(0.0F, DType::kE4m3).factor, 1.0F);
  EXPECT_EQ(RowScale(896.0F, DType::kE4m3).factor, 2.0F);
  EXPECT_EQ(RowScale(896.0F, DType::kE4m3).inverse, 0.5F);
  EXPECT_EQ(RowScale(254.0F, DType::kI8).factor, 2.0F);
  EXPECT_EQ(RowScale(INFINITY, DType::kI8).factor, INFINITY);
  const RowScale tiny(0x1p-140F, DType::kE4m3);
  EXPECT_TRUE(std::isfinite(tiny.inverse));
  EXPECT_EQ(to_float(to_e4m3(0x1p-140F * tiny.inverse)), 0.0F);
}

TEST(Bf16, TiesGoToEven) {
  const struct {
    uint32_t in;
    uint16_t out;
  } rows[] = {
      {0x3f808000, 0x3f80},                        // halfway, even below
      {0x3f818000, 0x3f82},                        // halfway, even above
      {0x3f807fff, 0x3f80},                        // just below halfway
      {0x3f808001, 0x3f81},                        // just above
      {0xbf808000, 0xbf80},                        // and negative
      {0xbf818000, 0xbf82}, {0x3fff8000, 0x4000},  // carries into the exponent
      {0x00008000, 0x0000},                        // subnormals round like the rest
      {0x00018000, 0x0002}, {0x007f8000, 0x0080},  // the largest tie below the normal numbers
      {0x7f7f7fff, 0x7f7f}, {0x7f7f8000, 0x7f80},  // too large: infinity
      {0x7f7fffff, 0x7f80}, {0xff7fffff, 0xff80}, {0x00000000, 0x0000}, {0x80000000, 0x8000},
  };
  for (const auto& row : rows) EXPECT_EQ(to_bf16(from_bits(row.in)).bits, row.out) << std::hex << row.in;
}

TEST(Bf16, InfinityStaysAndEveryNanStaysNan) {
  EXPECT_EQ(to_bf16(INFINITY).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-INFINITY).bits, 0xff80);
  // Payloads in the dropped bits, which plain rounding would turn into infinity or into zero.
  for (const uint32_t bits : {0x7f800001U, 0x7f80ffffU, 0x7f808000U, 0x7fffffffU, 0xff800001U, 0xffffffffU}) {
    const Bf16 rounded = to_bf16(from_bits(bits));
    EXPECT_TRUE(std::isnan(to_float(rounded))) << std::hex << bits;
    EXPECT_EQ(rounded.bits >> 15, bits >> 31) << std::hex << bits;
  }
}

TEST(Bf16, EveryPatternSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Bf16 value{static_cast<uint16_t>(bits)};
    const float wide = to_float(value);
    ASSERT_EQ(bits_of(wide), bits << 16);
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(to_float(to_bf16(wide)))) << std::hex << bits;
    } else {
      ASSERT_EQ(to_bf16(wide).bits, bits) << std::hex << bits;
      ASSERT_EQ(bits_of(round_to_bf16(wide)), bits << 16);
    }
  }
}

// The nearest of the two neighbours, found by comparing distances in double.
uint16_t nearest_by_distance(float value) {
  const uint32_t magnitude = bits_of(value) & 0x7fffffffU;
  const auto sign = static_cast<uint16_t>((bits_of(value) >> 16) & 0x8000U);
  const auto below = static_cast<uint16_t>(magnitude >> 16);
  const auto above = static_cast<uint16_t>(below + 1);
  const double x = std::abs(static_cast<double>(value));
  const double low = to_float(Bf16{below});
  const double high = above == 0x7f80 ? std::ldexp(1.0, 128) : static_cast<double>(to_float(Bf16{above}));
  const bool up = high - x < x - low || (high - x == x - low && (above & 1U) == 0);
  return static_cast<uint16_t>(sign | (up ? above : below));
}

TEST(Bf16, RoundsToTheNearest) {
  std::mt19937 random(7);
  int checked = 0;
  for (int i = 0; i < 400000; ++i) {
    const float value = from_bits(static_cast<uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(to_bf16(value).bits, nearest_by_distance(value)) << std::hex << bits_of(value);
    ++checked;
  }
  EXPECT_GT(checked, 390000);
}

TEST(Half, EveryPatternEqualsTheFormula) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
    const int exponent = static_cast<int>((bits >> 10) & 0x1fU);
    const double mantissa = bits & 0x3ffU;
    const float value = half_to_float(static_cast<uint16_t>(bits));
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(value), mantissa != 0) << std::hex << bits;
      ASSERT_EQ(std::isinf(value), mantissa == 0) << std::hex << bits;
      ASSERT_EQ(std::signbit(value), sign < 0);
      continue;
    }
    const double want =
        exponent == 0 ? sign * std::ldexp(mantissa, -24) : sign * std::ldexp(1.0 + mantissa / 1024.0, exponent - 15);
    ASSERT_EQ(static_cast<double>(value), want) << std::hex << bits;
    ASSERT_EQ(std::signbit(value), sign < 0) << std::hex << bits;
  }
}

}  // namespace
}  // namespace tendon
