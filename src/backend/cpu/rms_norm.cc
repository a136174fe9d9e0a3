// rms_norm: out = x / sqrt(mean(x²) + eps) · (1 + gain). Statistics in double, the product in f32, one rounding.
#include <algorithm>

#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

TENDON_CPU_CLONES void rms_norm_rows(const RmsNorm& a, int64_t begin, int64_t end) {
  float x_tile[kTile], gain_tile[kTile], out_tile[kTile];
  const int64_t width = a.x.cols();
  for (int64_t row = begin; row < end; ++row) {
    const float inverse = inverse_rms(a.x, row, a.eps);
    for (int64_t col = 0; col < width; col += kTile) {
      const int64_t count = std::min(kTile, width - col);
      const float* x = load_tile(a.x, row, col, count, x_tile);
      const float* gain = load_tile(a.gain, 0, col, count, gain_tile);
      for (int64_t i = 0; i < count; ++i) out_tile[i] = (x[i] * inverse) * (1.0F + gain[i]);
      store_tile(a.out, row, col, count, out_tile);
    }
  }
}

bool can_rms_norm(const RmsNorm& a) { return a.gain.defined() && all_float(a.x, a.gain, a.out); }

Status run_rms_norm(const RmsNorm& a, const char*) {
  parallel_for(a.x.rows(), row_grain(a.x.cols()), [&](int64_t begin, int64_t end) { rms_norm_rows(a, begin, end); });
  return Status::ok();
}

}  // namespace

CpuOp cpu_rms_norm() { return plain_op<RmsNorm, can_rms_norm, run_rms_norm>(); }

}  // namespace tendon
