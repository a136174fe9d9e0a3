// gelu_mul: out = round(gelu_tanh(gate)) · up; the inner rounding is to gate's type, the product is rounded once.
#include <algorithm>

#include "backend/cpu/op_table.h"
#include "backend/cpu/vector_math.h"

namespace tendon {
namespace {

TENDON_CPU_CLONES void gelu_mul_rows(const GeluMul& a, int64_t begin, int64_t end) {
  float gate_tile[kTile], up_tile[kTile], out_tile[kTile];
  const int64_t width = a.out.cols();
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t col = 0; col < width; col += kTile) {
      const int64_t count = std::min(kTile, width - col);
      const float* gate = load_tile(a.gate, row, col, count, gate_tile);
      for (int64_t i = 0; i < count; ++i) out_tile[i] = gelu_tanh_f32(gate[i]);
      round_tile(a.gate.dtype, out_tile, count);
      const float* up = load_tile(a.up, row, col, count, up_tile);
      for (int64_t i = 0; i < count; ++i) out_tile[i] *= up[i];
      store_tile(a.out, row, col, count, out_tile);
    }
  }
}

bool can_gelu_mul(const GeluMul& a) { return all_float(a.gate, a.up, a.out); }

Status run_gelu_mul(const GeluMul& a, const char*) {
  const int64_t grain = std::max<int64_t>(1, row_grain(a.out.cols()) / 4);  // about four times the arithmetic of an add
  parallel_for(a.out.rows(), grain, [&](int64_t begin, int64_t end) { gelu_mul_rows(a, begin, end); });
  return Status::ok();
}

}  // namespace

CpuOp cpu_gelu_mul() { return plain_op<GeluMul, can_gelu_mul, run_gelu_mul>(); }

}  // namespace tendon
