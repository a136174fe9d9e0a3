// Which kernel runs which product on one card: measured by `tendon tune`, stored as CSV, reviewed like code.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/gemm/desc.h"

namespace tendon::gemm {

// A kernel is named by who computes: "own:128x256x64x3/2" is a tile of gpu/gemm.h and the parts that K is cut into,
// "cublaslt:66.20.35.1.0.0.0.0.2" an algorithm of that library (backend/cuda/cublaslt.cc has the order of the numbers),
// "wgmma:256x200x3/1x2/1" a tile of cuda/hopper/tiles.h.
struct Row {
  Desc desc;
  std::string kernel;
  double us = 0;  // median time with weights that come from memory
  std::string date = {}, commit = {};
  int line = 0;  // where it was read
};

class Table {
 public:
  Table() = default;
  // The header line is m,n,k,x,w,out,epilogue,kernel,us,date,commit; lines that begin with # are comments. Throws
  // Error(kBadInput) with the file and the line that is malformed or repeats a description.
  static Table parse(std::string_view text, std::string name);
  static Table read(const std::string& path);
  // The table that was built in for this card; nothing when there is none.
  static std::optional<Table> built_in(std::string_view card);
  // What --gemm-table asks for: a file; the built-in table of this card for ""; nothing for "none".
  static std::optional<Table> choose(const std::string& wanted, std::string_view card);

  const std::string& name() const { return name_; }
  const std::vector<Row>& rows() const { return rows_; }

  // The row of this description; else the one that differs in M only and lies nearest, at most a factor of two away;
  // else null.
  const Row* find(const Desc& desc) const;
  const Row* find_exact(const Desc& desc) const;
  // Adds the row, in place of one with the same description.
  void put(Row row);
  // Takes what another table of this card has measured: of two rows with one description the later one, of one day the
  // faster one. Returns how many rows came in.
  size_t merge(const Table& other);
  // As a file: sorted by epilogue, types, N, K and M, so that a new measurement changes one line.
  std::string text() const;

 private:
  std::string name_;
  std::vector<Row> rows_;
};

// "NVIDIA H100 80GB HBM3" → "nvidia_h100_80gb_hbm3.csv".
std::string table_file_name(std::string_view card);

// The tables in tuning/gemm at build time (generated).
struct BuiltInTable {
  const char* file;
  const char* text;
};
extern const BuiltInTable kBuiltInTables[];  // ends with a null file

}  // namespace tendon::gemm
