// rope: per head, halves (a, b) → (a·cos - b·sin, b·cos + a·sin) with row positions[r] of the table; f32, one rounding.
#include <algorithm>

#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

TENDON_CPU_CLONES void rope_rows(const Rope& a, int64_t begin, int64_t end) {
  float low_tile[kTile], high_tile[kTile], cos_tile[kTile], sin_tile[kTile], low_out[kTile], high_out[kTile];
  const int64_t dim = a.table.cols();
  const int64_t half = dim / 2;
  const int64_t width = a.x.cols();
  const int32_t* positions = static_cast<const int32_t*>(a.positions.data);
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t first = 0; first < half; first += kTile) {
      const int64_t count = std::min(kTile, half - first);
      const float* cosine = load_tile(a.table, positions[row], first, count, cos_tile);
      const float* sine = load_tile(a.table, positions[row], half + first, count, sin_tile);
      for (int64_t head = 0; head < width; head += dim) {
        const float* low = load_tile(a.x, row, head + first, count, low_tile);
        const float* high = load_tile(a.x, row, head + half + first, count, high_tile);
        for (int64_t i = 0; i < count; ++i) {
          low_out[i] = low[i] * cosine[i] - high[i] * sine[i];
          high_out[i] = high[i] * cosine[i] + low[i] * sine[i];
        }
        store_tile(a.out, row, head + first, count, low_out);
        store_tile(a.out, row, head + half + first, count, high_out);
      }
    }
  }
}

bool can_rope(const Rope& a) { return all_float(a.x, a.table, a.out) && is_i32(a.positions); }

Status run_rope(const Rope& a, const char* label) {
  const Status status = check_index(a.positions, "positions", 0, a.table.rows(), label);
  if (!status.is_ok()) return status;
  parallel_for(a.x.rows(), row_grain(a.x.cols()), [&](int64_t begin, int64_t end) { rope_rows(a, begin, end); });
  return Status::ok();
}

}  // namespace

CpuOp cpu_rope() { return plain_op<Rope, can_rope, run_rope>(); }

}  // namespace tendon
