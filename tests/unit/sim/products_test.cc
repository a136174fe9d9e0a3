// Every tile of our own products, in several orders of threads: whole rounds of the pipeline, a depth that ends within
// a step, rows and columns that end within a tile.
#include <cmath>
#include <cstring>

#include "backend/gpu/gemm.h"
#include "fixture.h"

namespace tendon::test {
namespace {

using namespace tendon::gpu;

constexpr int64_t kRows = 37;
constexpr int64_t kCols = 75;
constexpr int64_t kDepth = 424;
constexpr size_t kWorkspaceBytes = size_t{8} << 20;

// Small integers: every sum is exact, whatever its order.
struct Operands {
  std::vector<Bf16> x = integers(kRows * kDepth, 37, 7), w = integers(kCols * kDepth, 53, 5),
                    up = integers(kCols * kDepth, 29, 5), out = std::vector<Bf16>(kRows * kCols),
                    residual = integers(kRows * kCols, 31, 9);
  std::vector<float> bias = std::vector<float>(kCols, 0.5F);
  std::vector<std::byte> parts = std::vector<std::byte>(kWorkspaceBytes, std::byte{0xff});

  static std::vector<Bf16> integers(int64_t count, int64_t step, int64_t range) {
    std::vector<Bf16> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      values[static_cast<size_t>(i)] = to_bf16(static_cast<float>(i * step % range - range / 2));
    return values;
  }
  static float dot(const std::vector<Bf16>& x, const std::vector<Bf16>& w, int64_t row, int64_t col) {
    float sum = 0;
    for (int64_t k = 0; k < kDepth; ++k) {
      sum += to_float(x[static_cast<size_t>(row * kDepth + k)]) * to_float(w[static_cast<size_t>(col * kDepth + k)]);
    }
    return sum;
  }
  Product product() {
    return {.x = Tensor(DType::kBf16, {kRows, kDepth}, x.data()),
            .w = Tensor(DType::kBf16, {kCols, kDepth}, w.data()),
            .out = Tensor(DType::kBf16, {kRows, kCols}, out.data())};
  }
};

class ProductTiles : public Simt {
 protected:
  // Runs the product with every tile, whole and in two parts, into an output of NaN; then check(name of the cut).
  // Returns how many cuts fit it.
  template <class F>
  int with_every_cut(const Product& p, std::vector<std::byte>& parts, const F& check) {
    int cuts = 0;
    for (int tile = 0; tile < static_cast<int>(tiles().size()); ++tile) {
      for (const int splits : {1, 2}) {
        if (!cut_fits(p, {tile, splits}, kWorkspaceBytes)) continue;
        std::memset(p.out.data, 0xff, p.out.bytes());
        launch_product(p, {tile, splits}, parts.data(), stream());
        wait();
        check(tiles()[static_cast<size_t>(tile)].name() + "/" + std::to_string(splits));
        ++cuts;
      }
    }
    return cuts;
  }
};

TEST_P(ProductTiles, EveryTileAddsABiasAndAResidual) {
  Operands o;
  Product p = o.product();
  p.bias = Tensor(DType::kF32, {kCols}, o.bias.data());
  p.residual = Tensor(DType::kBf16, {kRows, kCols}, o.residual.data());
  std::vector<uint16_t> expected;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t col = 0; col < kCols; ++col) {
      const float linear = round_to_bf16(Operands::dot(o.x, o.w, row, col) + 0.5F);
      expected.push_back(to_bf16(linear + to_float(o.residual[static_cast<size_t>(row * kCols + col)])).bits);
    }
  }
  with_every_cut(p, o.parts, [&](const std::string& cut) {
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(o.out[i].bits, expected[i]) << cut << " at " << i;
    }
  });
}

TEST_P(ProductTiles, EveryTileMultipliesGateAndUp) {
  Operands o;
  Product p = o.product();
  p.up = Tensor(DType::kBf16, {kCols, kDepth}, o.up.data());
  std::vector<float> expected;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t col = 0; col < kCols; ++col) {
      const double x = static_cast<double>(round_to_bf16(Operands::dot(o.x, o.w, row, col)));
      const double gelu = x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
      expected.push_back(round_to_bf16(static_cast<float>(gelu)) * round_to_bf16(Operands::dot(o.x, o.up, row, col)));
    }
  }
  with_every_cut(p, o.parts, [&](const std::string& cut) {
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(to_float(o.out[i]), expected[i], 0.02F * std::fabs(expected[i]) + 1e-30F) << cut << " at " << i;
    }
  });
}

// Small integers as codes, with scales that keep every number exact; one row of e4m3 has a number that is not finite.
template <class Code>
struct CodeOperands {
  static constexpr DType kCodes = std::is_same_v<Code, E4m3> ? DType::kE4m3 : DType::kI8;
  static constexpr int64_t kDepth = 432;  // whole blocks of sixteen, no whole steps
  static constexpr int64_t kBrokenRow = 5;
  std::vector<Code> x = codes(kRows * kDepth, 37, 17), w = codes(kCols * kDepth, 53, 15),
                    up = codes(kCols * kDepth, 29, 3);
  std::vector<float> x_scales = scales(kRows), w_scales = scales(kCols), up_scales = scales(kCols);
  std::vector<float> bias = std::vector<float>(kCols, 0.5F), out = std::vector<float>(kRows * kCols);
  std::vector<std::byte> parts = std::vector<std::byte>(kWorkspaceBytes, std::byte{0xff});

  CodeOperands() {
    if constexpr (kCodes == DType::kE4m3) {
      x_scales[kBrokenRow] = INFINITY;
      for (int64_t k = 0; k < kDepth; ++k) x[kBrokenRow * kDepth + k] = E4m3{static_cast<uint8_t>(k == 7 ? 0x7f : 0)};
    }
  }
  static std::vector<Code> codes(int64_t count, int64_t step, int64_t range) {
    std::vector<Code> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(i * step % range - range / 2);
      if constexpr (kCodes == DType::kE4m3) {
        values[static_cast<size_t>(i)] = to_e4m3(value);
      } else {
        values[static_cast<size_t>(i)] = to_i8(value);
      }
    }
    return values;
  }
  static std::vector<float> scales(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = static_cast<float>(1 + i % 3) / 8.0F;
    return values;
  }
  static Tensor tensor(std::vector<Code>& codes, std::vector<float>& scales) {
    Tensor t(kCodes, {static_cast<int64_t>(scales.size()), kDepth}, codes.data());
    t.scales = scales.data();
    return t;
  }
  float value(Code code) const {
    if constexpr (kCodes == DType::kE4m3) {
      return to_float(code);
    } else {
      return static_cast<float>(code);
    }
  }
  float dot(const std::vector<Code>& columns, const std::vector<float>& scales, int64_t row, int64_t col) const {
    float sum = 0;
    for (int64_t k = 0; k < kDepth; ++k) {
      sum += value(x[static_cast<size_t>(row * kDepth + k)]) * value(columns[static_cast<size_t>(col * kDepth + k)]);
    }
    return sum * x_scales[static_cast<size_t>(row)] * scales[static_cast<size_t>(col)];
  }
  Product product() {
    return {.x = tensor(x, x_scales), .w = tensor(w, w_scales), .out = Tensor(DType::kF32, {kRows, kCols}, out.data())};
  }
};

class CodeTiles : public ProductTiles {
 protected:
  template <class Code>
  void every_tile_multiplies() {
    CodeOperands<Code> o;
    Product p = o.product();
    p.bias = Tensor(DType::kF32, {kCols}, o.bias.data());
    const int cuts = with_every_cut(p, o.parts, [&](const std::string& cut) {
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t col = 0; col < kCols; ++col) {
          const float expected = o.dot(o.w, o.w_scales, row, col) + 0.5F;
          const float value = o.out[static_cast<size_t>(row * kCols + col)];
          ASSERT_TRUE(std::isnan(expected) ? std::isnan(value) : value == expected)
              << cut << " at " << row << ", " << col << ": " << value << " for " << expected;
        }
      }
    });
    EXPECT_GE(cuts, kWarpSize == 64 ? 20 : 2);  // those on matrix units
  }
  template <class Code>
  void every_tile_multiplies_gate_and_up() {
    CodeOperands<Code> o;
    Product p = o.product();
    p.up = o.tensor(o.up, o.up_scales);
    with_every_cut(p, o.parts, [&](const std::string& cut) {
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t col = 0; col < kCols; ++col) {
          const auto x = static_cast<double>(o.dot(o.w, o.w_scales, row, col));
          const double gelu = x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
          const double expected = gelu * static_cast<double>(o.dot(o.up, o.up_scales, row, col));
          const double value = static_cast<double>(o.out[static_cast<size_t>(row * kCols + col)]);
          ASSERT_TRUE(std::isnan(expected) ? std::isnan(value)
                                           : std::fabs(value - expected) <= 1e-5 * std::fabs(expected) + 1e-30)
              << cut << " at " << row << ", " << col << ": " << value << " for " << expected;
        }
      }
    });
  }
};

TEST_P(CodeTiles, EveryTileMultipliesE4m3) { every_tile_multiplies<E4m3>(); }
TEST_P(CodeTiles, EveryTileMultipliesI8) { every_tile_multiplies<int8_t>(); }
TEST_P(CodeTiles, EveryTileMultipliesGateAndUpOfE4m3) { every_tile_multiplies_gate_and_up<E4m3>(); }
TEST_P(CodeTiles, EveryTileMultipliesGateAndUpOfI8) { every_tile_multiplies_gate_and_up<int8_t>(); }

TEST(ProductCuts, TilesOfCodesTakeNoOtherOperands) {
  CodeOperands<int8_t> codes;
  Operands numbers;
  Product p = codes.product();
  for (int t = 0; t < plain_tile(); ++t) {
    const bool of_codes = tiles()[static_cast<size_t>(t)].codes;
    EXPECT_EQ(cut_fits(p, {t, 1}, kWorkspaceBytes), of_codes);
    EXPECT_EQ(cut_fits(numbers.product(), {t, 1}, kWorkspaceBytes), !of_codes);
  }
  p.x.row_stride += 8;  // rows that are not 16-byte aligned
  for (int t = 0; t < plain_tile(); ++t) EXPECT_FALSE(cut_fits(p, {t, 1}, kWorkspaceBytes));
  EXPECT_TRUE(cut_fits(p, {plain_tile(), 1}, kWorkspaceBytes));
}

TEST(ProductCuts, AreRefusedWhereTheyDoNotFit) {
  Operands o;
  Product p = o.product();
  const int last = static_cast<int>(tiles().size());
  EXPECT_FALSE(cut_fits(p, {last, 1}, kWorkspaceBytes));
  EXPECT_FALSE(cut_fits(p, {-1, 1}, kWorkspaceBytes));
  EXPECT_FALSE(cut_fits(p, {0, 0}, kWorkspaceBytes));
  EXPECT_FALSE(cut_fits(p, {0, 5}, kWorkspaceBytes));  // 7 steps: one of 5 parts would be empty
  EXPECT_FALSE(cut_fits(p, {0, 2}, 1000));
  EXPECT_EQ(cut_workspace_bytes(p, {0, 2}), size_t{2} * kRows * 80 * sizeof(float));
  p.x.row_stride += 1;  // rows that are not 16-byte aligned
  EXPECT_FALSE(cut_fits(p, {0, 1}, kWorkspaceBytes));
  EXPECT_TRUE(cut_fits(p, {plain_tile(), 1}, kWorkspaceBytes));
  EXPECT_EQ(default_cut(p, 132, kWorkspaceBytes).tile, plain_tile());
}

TEST(ProductCuts, NeedTheSharedMemoryOfTheirTile) {
  Operands o;
  CodeOperands<E4m3> codes;
  for (int t = 0; t < plain_tile(); ++t) {
    const Tile& tile = tiles()[static_cast<size_t>(t)];
    const Product p = tile.codes ? codes.product() : o.product();
    const auto bytes = static_cast<size_t>(tile.shared_bytes);
    EXPECT_GT(bytes, 0U);
    EXPECT_TRUE(cut_fits(p, {t, 1}, {kWorkspaceBytes, bytes})) << tile.name();
    EXPECT_FALSE(cut_fits(p, {t, 1}, {kWorkspaceBytes, bytes - 1})) << tile.name();
  }
  const Product p = o.product();
  EXPECT_EQ(default_cut(p, 132, {kWorkspaceBytes, 0}).tile, plain_tile());
  constexpr size_t kOfGfx942 = size_t{64} << 10;
  const Cut cut = default_cut(p, 132, {kWorkspaceBytes, kOfGfx942});
  EXPECT_LE(static_cast<size_t>(tiles()[static_cast<size_t>(cut.tile)].shared_bytes), kOfGfx942);
}

TENDON_ALL_ORDERS(ProductTiles);
TENDON_ALL_ORDERS(CodeTiles);

}  // namespace
}  // namespace tendon::test
