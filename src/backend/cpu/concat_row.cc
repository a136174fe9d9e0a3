// concat_row: out[r] = [x[r] ; row], each part converted to out's type.
#include <algorithm>

#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

TENDON_CPU_CLONES void concat_row_rows(const ConcatRow& a, int64_t begin, int64_t end) {
  float tile[kTile];
  const int64_t width = a.x.cols();
  const int64_t row_width = a.row.cols();
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t col = 0; col < width; col += kTile) {
      const int64_t count = std::min(kTile, width - col);
      store_tile(a.out, r, col, count, load_tile(a.x, r, col, count, tile));
    }
    for (int64_t col = 0; col < row_width; col += kTile) {
      const int64_t count = std::min(kTile, row_width - col);
      store_tile(a.out, r, width + col, count, load_tile(a.row, 0, col, count, tile));
    }
  }
}

bool can_concat_row(const ConcatRow& a) { return all_float(a.x, a.row, a.out); }

Status run_concat_row(const ConcatRow& a, const char*) {
  parallel_for(a.out.rows(), row_grain(a.out.cols()),
               [&](int64_t begin, int64_t end) { concat_row_rows(a, begin, end); });
  return Status::ok();
}

}  // namespace

CpuOp cpu_concat_row() { return plain_op<ConcatRow, can_concat_row, run_concat_row>(); }

}  // namespace tendon
