// GEMM tables name kernels that exist: a row that does not stops the engine on the cards of its table.
#include <gtest/gtest.h>

#include "backend/cuda/hopper/products.h"
#include "backend/gemm/table.h"

namespace tendon::gpu::hopper {
namespace {

constexpr std::string_view kTiles = "wgmma:";

// Checks all rows; returns how many name a tile.
int check(const gemm::Table& table) {
  int tiles = 0;
  for (const gemm::Row& row : table.rows()) {
    if (!row.kernel.starts_with(kTiles)) continue;
    ++tiles;
    const std::string_view tile = std::string_view(row.kernel).substr(kTiles.size());
    // Behind one that does not rotate, another kernel does.
    EXPECT_TRUE(has_tile(row.desc, tile) || has_tile(gemm::without_rope(row.desc), tile))
        << table.name() << ", line " << row.line << ": " << row.kernel;
  }
  return tiles;
}

TEST(Tables, BuiltInOnesNameTilesThatExist) {
  int tiles = 0;
  for (const gemm::BuiltInTable* table = gemm::kBuiltInTables; table->file != nullptr; ++table) {
    tiles += check(gemm::Table::parse(table->text, table->file));
  }
  EXPECT_GT(tiles, 150);
}

TEST(Tables, TheOneOfTheTestCasesNamesTilesThatExist) {
  EXPECT_GT(check(gemm::Table::read(TENDON_TEST_DATA "/gemm/hopper_tiles.csv")), 50);
}

TEST(Tables, ATileExistsForTheOperandsTheEpilogueAndTheResultThatHaveIt) {
  const auto desc = [](DType operands, DType out, const char* epilogue) {
    return gemm::Desc{.m = 788, .n = 2048, .k = 2048, .x = operands, .w = operands, .out = out, .epilogue = epilogue};
  };
  const char* const tile = "256x200x3/1x1/1";
  EXPECT_TRUE(has_tile(desc(DType::kBf16, DType::kBf16, "gelu_mul"), tile));
  EXPECT_FALSE(has_tile(desc(DType::kI8, DType::kBf16, "gelu_mul"), tile));
  EXPECT_FALSE(has_tile(desc(DType::kBf16, DType::kBf16, "bias+residual"), tile));
  EXPECT_FALSE(has_tile(desc(DType::kBf16, DType::kBf16, "gelu_mul"), "256x200x3/1x1/1+7"));
  EXPECT_TRUE(has_tile(desc(DType::kI8, DType::kI8, "bias+gelu"), "192x160x4/1x1/1"));
  EXPECT_FALSE(has_tile(desc(DType::kI8, DType::kI8, "bias"), "192x160x4/1x1/1"));
}

}  // namespace
}  // namespace tendon::gpu::hopper
