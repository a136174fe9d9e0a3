// cast: out = x in out's type.
#include <algorithm>

#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

TENDON_CPU_CLONES void cast_rows(const Cast& a, int64_t begin, int64_t end) {
  float tile[kTile];
  const int64_t width = a.out.cols();
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t col = 0; col < width; col += kTile) {
      const int64_t count = std::min(kTile, width - col);
      store_tile(a.out, row, col, count, load_tile(a.x, row, col, count, tile));
    }
  }
}

bool can_cast(const Cast& a) { return all_float(a.x, a.out); }

Status run_cast(const Cast& a, const char*) {
  parallel_for(a.out.rows(), row_grain(a.out.cols()), [&](int64_t begin, int64_t end) { cast_rows(a, begin, end); });
  return Status::ok();
}

}  // namespace

CpuOp cpu_cast() { return plain_op<Cast, can_cast, run_cast>(); }

}  // namespace tendon
