// euler_step: out = x + dt · v, one multiplication and one addition in f32.
#include <algorithm>

#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

TENDON_CPU_CLONES void euler_step_rows(const EulerStep& a, int64_t begin, int64_t end) {
  float x_tile[kTile], v_tile[kTile], out_tile[kTile];
  const int64_t width = a.out.cols();
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t col = 0; col < width; col += kTile) {
      const int64_t count = std::min(kTile, width - col);
      const float* x = load_tile(a.x, row, col, count, x_tile);
      const float* v = load_tile(a.v, row, col, count, v_tile);
      for (int64_t i = 0; i < count; ++i) out_tile[i] = x[i] + a.dt * v[i];
      store_tile(a.out, row, col, count, out_tile);
    }
  }
}

bool can_euler_step(const EulerStep& a) { return all_float(a.x, a.v, a.out); }

Status run_euler_step(const EulerStep& a, const char*) {
  parallel_for(a.out.rows(), row_grain(a.out.cols()),
               [&](int64_t begin, int64_t end) { euler_step_rows(a, begin, end); });
  return Status::ok();
}

}  // namespace

CpuOp cpu_euler_step() { return plain_op<EulerStep, can_euler_step, run_euler_step>(); }

}  // namespace tendon
