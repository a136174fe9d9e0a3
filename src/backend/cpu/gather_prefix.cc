// gather_prefix: out[r] = features[s] for s = sources[r] ≥ 0, else embedding[-1 - s] · scale; f32, one rounding.
#include <algorithm>

#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

TENDON_CPU_CLONES void gather_prefix_rows(const GatherPrefix& a, int64_t begin, int64_t end) {
  float tile[kTile], out_tile[kTile];
  const int64_t width = a.out.cols();
  const int32_t* sources = static_cast<const int32_t*>(a.sources.data);
  for (int64_t row = begin; row < end; ++row) {
    const bool is_feature = sources[row] >= 0;
    const Tensor& from = is_feature ? a.features : a.embedding;
    const int64_t source = is_feature ? sources[row] : -1 - static_cast<int64_t>(sources[row]);
    const float scale = is_feature ? 1.0F : a.scale;
    for (int64_t col = 0; col < width; col += kTile) {
      const int64_t count = std::min(kTile, width - col);
      const float* values = load_tile(from, source, col, count, tile);
      for (int64_t i = 0; i < count; ++i) out_tile[i] = values[i] * scale;
      store_tile(a.out, row, col, count, out_tile);
    }
  }
}

bool can_gather_prefix(const GatherPrefix& a) { return all_float(a.features, a.embedding, a.out) && is_i32(a.sources); }

Status run_gather_prefix(const GatherPrefix& a, const char* label) {
  const Status status = check_index(a.sources, "sources", -a.embedding.rows(), a.features.rows(), label);
  if (!status.is_ok()) return status;
  parallel_for(a.out.rows(), row_grain(a.out.cols()),
               [&](int64_t begin, int64_t end) { gather_prefix_rows(a, begin, end); });
  return Status::ok();
}

}  // namespace

CpuOp cpu_gather_prefix() { return plain_op<GatherPrefix, can_gather_prefix, run_gather_prefix>(); }

}  // namespace tendon
