#include "backend/gemm/table.h"

#include <fstream>

#include <gtest/gtest.h>

#include "base/check.h"

namespace tendon::gemm {
namespace {

const std::string kHeader = "m,n,k,x,w,out,epilogue,kernel,us,date,commit\n";
const std::string kRow = "788,2560,2048,bf16,bf16,bf16,none,own:128x128x64x3/2,41.50,2026-01-31,0123456789\n";

Desc prefix(int64_t rows) { return {.m = rows, .n = 2560, .k = 2048}; }

// The message of the error that parsing gives.
std::string fault(const std::string& text) {
  try {
    Table::parse(text, "card.csv");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    return error.what();
  }
  return "none";
}

TEST(GemmTable, ReadsWhatItWrites) {
  const std::string text = kHeader + "10,32,1024,bf16,f32,f32,bias,cublaslt:1.2.3,5.25,2026-01-31,abc\n" + kRow;
  const Table table = Table::parse("# how it was made\n" + text + "\n", "card.csv");
  ASSERT_EQ(table.rows().size(), 2U);
  EXPECT_EQ(table.rows()[0].desc.w, DType::kF32);
  EXPECT_EQ(table.rows()[1].line, 4);
  EXPECT_DOUBLE_EQ(table.rows()[1].us, 41.5);
  EXPECT_EQ(table.text(), text);
  EXPECT_EQ(Table::parse(table.text(), "again").text(), text);
}

TEST(GemmTable, NamesFileAndLineOfAFault) {
  EXPECT_NE(fault(kHeader + kRow + "788,2560\n").find("card.csv, line 3: 2 fields"), std::string::npos);
  EXPECT_NE(fault("788,2560\n").find("line 1: the header"), std::string::npos);
  EXPECT_NE(fault("").find("card.csv: no header"), std::string::npos);
  EXPECT_NE(fault(kHeader + kRow + "\n" + kRow).find("line 4: 788x2560x2048 bf16 bf16 bf16 none stands in line 2"),
            std::string::npos);
  const std::pair<const char*, const char*> damages[] = {
      {"788,", "0,"},    {"788,", "7.5,"},      {"bf16,bf16,bf16", "bf16,f16,bf16"},
      {"none", "bias+"}, {"none", "gelu+bias"}, {"none", "residual+gated"},
      {"none", "relu"},  {"own:", "own"},       {"41.50", "-1"},
      {"41.50", "inf"},  {"41.50", "fast"},     {"own:128x128x64x3/2", ""},
  };
  for (const auto& [from, to] : damages) {
    std::string row = kRow;
    row.replace(row.find(from), std::string(from).size(), to);
    EXPECT_NE(fault(kHeader + row).find("card.csv, line 2: "), std::string::npos) << row;
  }
}

TEST(GemmTable, FindsTheRowOrItsNeighbour) {
  Table table;
  for (const int64_t rows : {200, 788, 816}) table.put({.desc = prefix(rows), .kernel = "own:x", .us = 1.0});
  EXPECT_EQ(table.find(prefix(788))->desc.m, 788);
  EXPECT_EQ(table.find(prefix(790))->desc.m, 788);
  EXPECT_EQ(table.find(prefix(805))->desc.m, 816);
  EXPECT_EQ(table.find(prefix(100))->desc.m, 200);
  EXPECT_EQ(table.find(prefix(99)), nullptr);  // more than a factor of two away
  EXPECT_EQ(table.find(prefix(1633)), nullptr);
  EXPECT_EQ(table.find_exact(prefix(790)), nullptr);
  Desc other = prefix(788);
  other.epilogue = "residual";
  EXPECT_EQ(table.find(other), nullptr);
  other = prefix(788);
  other.out = DType::kF32;
  EXPECT_EQ(table.find(other), nullptr);
}

TEST(GemmTable, PutReplacesARow) {
  Table table;
  table.put({.desc = prefix(788), .kernel = "own:a", .us = 2.0});
  table.put({.desc = prefix(788), .kernel = "own:b", .us = 1.0});
  ASSERT_EQ(table.rows().size(), 1U);
  EXPECT_EQ(table.find(prefix(788))->kernel, "own:b");
}

TEST(GemmTable, IsNamedAfterItsCard) {
  EXPECT_EQ(table_file_name("NVIDIA H100 80GB HBM3"), "nvidia_h100_80gb_hbm3.csv");
  EXPECT_EQ(table_file_name("  A (b)-c "), "a_b_c_.csv");
  EXPECT_FALSE(Table::built_in("Abacus 7").has_value());
}

TEST(GemmTable, BuiltInTablesAreReadable) {
  for (const BuiltInTable* entry = kBuiltInTables; entry->file != nullptr; ++entry) {
    EXPECT_GT(Table::parse(entry->text, entry->file).rows().size(), 0U) << entry->file;
  }
}

TEST(GemmTable, SaysWhenAFileIsMissing) {
  try {
    Table::read("/nonexistent/card.csv");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_NE(std::string(error.what()).find("/nonexistent/card.csv"), std::string::npos);
  }
}

// Later rows win, on one day faster ones; the rest comes in as it is.
TEST(GemmTable, MergesTheMeasurementsOfAnotherTable) {
  const std::string header = "m,n,k,x,w,out,epilogue,kernel,us,date,commit\n";
  Table table = Table::parse(kHeader +
                                 "10,64,64,bf16,bf16,bf16,none,own:a,5.00,2026-11-01,x\n"
                                 "20,64,64,bf16,bf16,bf16,none,own:b,5.00,2026-11-02,x\n"
                                 "30,64,64,bf16,bf16,bf16,none,own:c,5.00,2026-11-02,x\n",
                             "one");
  const Table other = Table::parse(kHeader +
                                       "10,64,64,bf16,bf16,bf16,none,own:later,9.00,2026-11-02,y\n"
                                       "20,64,64,bf16,bf16,bf16,none,own:earlier,1.00,2026-11-01,y\n"
                                       "30,64,64,bf16,bf16,bf16,none,own:faster,4.00,2026-11-02,y\n"
                                       "40,64,64,bf16,bf16,bf16,none,own:new,4.00,2026-11-02,y\n",
                                   "other");
  EXPECT_EQ(table.merge(other), 3U);
  ASSERT_EQ(table.rows().size(), 4U);
  EXPECT_EQ(table.rows()[0].kernel, "own:later");
  EXPECT_EQ(table.rows()[1].kernel, "own:b");
  EXPECT_EQ(table.rows()[2].kernel, "own:faster");
  EXPECT_EQ(table.rows()[3].kernel, "own:new");
  EXPECT_EQ(table.merge(other), 0U);
}

TEST(GemmTable, RotationStandsAlone) {
  const Table table = Table::parse(kHeader + "10,768,64,bf16,bf16,bf16,rope,own:a,5.00,2026-11-01,x\n", "one");
  EXPECT_EQ(table.rows()[0].desc.epilogue, "rope");
  EXPECT_EQ(without_rope(table.rows()[0].desc).epilogue, "none");
  EXPECT_EQ(without_rope({.epilogue = "bias"}).epilogue, "bias");
  EXPECT_THROW((void)Table::parse(kHeader + "10,768,64,bf16,bf16,bf16,bias+rope,own:a,5.00,2026-11-01,x\n", "one"),
               Error);
}

TEST(GemmTable, IsChosenByTheOptionsWord) {
  EXPECT_FALSE(Table::choose("none", "NVIDIA H100 80GB HBM3").has_value());
  EXPECT_TRUE(Table::choose("", "NVIDIA H100 80GB HBM3").has_value());
  EXPECT_FALSE(Table::choose("", "a card that nobody measured").has_value());
  EXPECT_THROW((void)Table::choose("/no/such/table.csv", "any"), Error);
}

}  // namespace
}  // namespace tendon::gemm
