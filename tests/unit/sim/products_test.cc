// Every tile of our own products, in several orders of threads: whole rounds of the pipeline, a depth that ends within
// a step, rows and columns that end within a tile.
#include <cmath>

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
  template <class F>
  void with_every_cut(const Product& p, Operands& o, const F& check) {
    for (int tile = 0; tile < static_cast<int>(tiles().size()); ++tile) {
      for (const int splits : {1, 2}) {
        if (!cut_fits(p, {tile, splits}, kWorkspaceBytes)) continue;
        o.out.assign(o.out.size(), Bf16{0x7fc0});
        launch_product(p, {tile, splits}, o.parts.data(), stream());
        wait();
        check(tiles()[static_cast<size_t>(tile)].name() + "/" + std::to_string(splits));
      }
    }
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
  with_every_cut(p, o, [&](const std::string& cut) {
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
  with_every_cut(p, o, [&](const std::string& cut) {
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(to_float(o.out[i]), expected[i], 0.02F * std::fabs(expected[i]) + 1e-30F) << cut << " at " << i;
    }
  });
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
  const Product p = o.product();
  for (int t = 0; t < plain_tile(); ++t) {
    const Tile& tile = tiles()[static_cast<size_t>(t)];
    const auto bytes = static_cast<size_t>(tile.shared_bytes);
    EXPECT_GT(bytes, 0U);
    EXPECT_TRUE(cut_fits(p, {t, 1}, {kWorkspaceBytes, bytes})) << tile.name();
    EXPECT_FALSE(cut_fits(p, {t, 1}, {kWorkspaceBytes, bytes - 1})) << tile.name();
  }
  EXPECT_EQ(default_cut(p, 132, {kWorkspaceBytes, 0}).tile, plain_tile());
  constexpr size_t kOfGfx942 = size_t{64} << 10;
  const Cut cut = default_cut(p, 132, {kWorkspaceBytes, kOfGfx942});
  EXPECT_LE(static_cast<size_t>(tiles()[static_cast<size_t>(cut.tile)].shared_bytes), kOfGfx942);
}

TENDON_ALL_ORDERS(ProductTiles);

}  // namespace
}  // namespace tendon::test
