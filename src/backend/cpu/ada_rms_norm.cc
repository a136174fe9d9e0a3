// ada_rms_norm: out = x / sqrt(mean(x²) + eps) · (1 + scale) + shift. Statistics in double, the rest in f32, one
// rounding.
#include <algorithm>

#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

TENDON_CPU_CLONES void ada_rms_norm_rows(const AdaRmsNorm& a, int64_t begin, int64_t end) {
  float x_tile[kTile], scale_tile[kTile], shift_tile[kTile], out_tile[kTile];
  const int64_t width = a.x.cols();
  for (int64_t row = begin; row < end; ++row) {
    const float inverse = inverse_rms(a.x, row, a.eps);
    for (int64_t col = 0; col < width; col += kTile) {
      const int64_t count = std::min(kTile, width - col);
      const float* x = load_tile(a.x, row, col, count, x_tile);
      const float* scale = load_tile(a.scale, 0, col, count, scale_tile);
      const float* shift = load_tile(a.shift, 0, col, count, shift_tile);
      for (int64_t i = 0; i < count; ++i) out_tile[i] = (x[i] * inverse) * (1.0F + scale[i]) + shift[i];
      store_tile(a.out, row, col, count, out_tile);
    }
  }
}

bool can_ada_rms_norm(const AdaRmsNorm& a) {
  return a.scale.defined() && a.shift.defined() && all_float(a.x, a.scale, a.shift, a.out);
}

Status run_ada_rms_norm(const AdaRmsNorm& a, const char*) {
  parallel_for(a.x.rows(), row_grain(a.x.cols()),
               [&](int64_t begin, int64_t end) { ada_rms_norm_rows(a, begin, end); });
  return Status::ok();
}

}  // namespace

CpuOp cpu_ada_rms_norm() { return plain_op<AdaRmsNorm, can_ada_rms_norm, run_ada_rms_norm>(); }

}  // namespace tendon
