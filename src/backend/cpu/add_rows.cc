// add_rows: out[r] = x[r] + table[r mod T], in f32, one rounding.
#include <algorithm>

#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

TENDON_CPU_CLONES void add_rows_rows(const AddRows& a, int64_t begin, int64_t end) {
  float x_tile[kTile], table_tile[kTile], out_tile[kTile];
  const int64_t width = a.x.cols();
  const int64_t period = a.table.rows();
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t col = 0; col < width; col += kTile) {
      const int64_t count = std::min(kTile, width - col);
      const float* x = load_tile(a.x, row, col, count, x_tile);
      const float* table = load_tile(a.table, row % period, col, count, table_tile);
      for (int64_t i = 0; i < count; ++i) out_tile[i] = x[i] + table[i];
      store_tile(a.out, row, col, count, out_tile);
    }
  }
}

bool can_add_rows(const AddRows& a) { return all_float(a.x, a.table, a.out); }

Status run_add_rows(const AddRows& a, const char*) {
  parallel_for(a.x.rows(), row_grain(a.x.cols()), [&](int64_t begin, int64_t end) { add_rows_rows(a, begin, end); });
  return Status::ok();
}

}  // namespace

CpuOp cpu_add_rows() { return plain_op<AddRows, can_add_rows, run_add_rows>(); }

}  // namespace tendon
