// gated_residual: out = x + round(y · round(gate)); the inner roundings are to y's type, the sum is rounded once.
#include <algorithm>

#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

TENDON_CPU_CLONES void gated_residual_rows(const GatedResidual& a, int64_t begin, int64_t end) {
  float x_tile[kTile], y_tile[kTile], gate_tile[kTile], product[kTile], out_tile[kTile];
  const int64_t width = a.out.cols();
  for (int64_t col = 0; col < width; col += kTile) {
    const int64_t count = std::min(kTile, width - col);
    const float* loaded = load_tile(a.gate, 0, col, count, gate_tile);
    if (loaded != gate_tile) std::copy_n(loaded, count, gate_tile);
    round_tile(a.y.dtype, gate_tile, count);
    for (int64_t row = begin; row < end; ++row) {
      const float* x = load_tile(a.x, row, col, count, x_tile);
      const float* y = load_tile(a.y, row, col, count, y_tile);
      for (int64_t i = 0; i < count; ++i) product[i] = y[i] * gate_tile[i];
      round_tile(a.y.dtype, product, count);
      for (int64_t i = 0; i < count; ++i) out_tile[i] = x[i] + product[i];
      store_tile(a.out, row, col, count, out_tile);
    }
  }
}

bool can_gated_residual(const GatedResidual& a) { return all_float(a.x, a.y, a.gate, a.out); }

Status run_gated_residual(const GatedResidual& a, const char*) {
  parallel_for(a.out.rows(), row_grain(a.out.cols()),
               [&](int64_t begin, int64_t end) { gated_residual_rows(a, begin, end); });
  return Status::ok();
}

}  // namespace

CpuOp cpu_gated_residual() { return plain_op<GatedResidual, can_gated_residual, run_gated_residual>(); }

}  // namespace tendon
