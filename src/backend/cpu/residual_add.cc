// residual_add: out = x + y, in f32, one rounding.
#include <algorithm>

#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

TENDON_CPU_CLONES void residual_add_rows(const ResidualAdd& a, int64_t begin, int64_t end) {
  float x_tile[kTile], y_tile[kTile], out_tile[kTile];
  const int64_t width = a.out.cols();
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t col = 0; col < width; col += kTile) {
      const int64_t count = std::min(kTile, width - col);
      const float* x = load_tile(a.x, row, col, count, x_tile);
      const float* y = load_tile(a.y, row, col, count, y_tile);
      for (int64_t i = 0; i < count; ++i) out_tile[i] = x[i] + y[i];
      store_tile(a.out, row, col, count, out_tile);
    }
  }
}

bool can_residual_add(const ResidualAdd& a) { return all_float(a.x, a.y, a.out); }

Status run_residual_add(const ResidualAdd& a, const char*) {
  parallel_for(a.out.rows(), row_grain(a.out.cols()),
               [&](int64_t begin, int64_t end) { residual_add_rows(a, begin, end); });
  return Status::ok();
}

}  // namespace

CpuOp cpu_residual_add() { return plain_op<ResidualAdd, can_residual_add, run_residual_add>(); }

}  // namespace tendon
