// layer_norm: out = (x - mean) / sqrt(var + eps) · gain + bias. Statistics in double, the rest in f32, one rounding.
#include <algorithm>
#include <cmath>

#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

TENDON_CPU_CLONES void layer_norm_rows(const LayerNorm& a, int64_t begin, int64_t end) {
  float x_tile[kTile], gain_tile[kTile], bias_tile[kTile], out_tile[kTile];
  const int64_t width = a.x.cols();
  for (int64_t row = begin; row < end; ++row) {
    double total = 0;
    for (int64_t col = 0; col < width; col += kTile) {
      const int64_t count = std::min(kTile, width - col);
      total += sum(load_tile(a.x, row, col, count, x_tile), count);
    }
    const double mean = total / static_cast<double>(width);
    double squares = 0;
    for (int64_t col = 0; col < width; col += kTile) {
      const int64_t count = std::min(kTile, width - col);
      squares += sum_squares(load_tile(a.x, row, col, count, x_tile), count, mean);
    }
    const float inverse =
        static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(a.eps)));
    const float centre = static_cast<float>(mean);
    for (int64_t col = 0; col < width; col += kTile) {
      const int64_t count = std::min(kTile, width - col);
      const float* x = load_tile(a.x, row, col, count, x_tile);
      const float* gain = load_tile(a.gain, 0, col, count, gain_tile);
      const float* bias = load_tile(a.bias, 0, col, count, bias_tile);
      for (int64_t i = 0; i < count; ++i) out_tile[i] = ((x[i] - centre) * inverse) * gain[i] + bias[i];
      store_tile(a.out, row, col, count, out_tile);
    }
  }
}

bool can_layer_norm(const LayerNorm& a) {
  return a.gain.defined() && a.bias.defined() && all_float(a.x, a.gain, a.bias, a.out);
}

Status run_layer_norm(const LayerNorm& a, const char*) {
  parallel_for(a.x.rows(), row_grain(a.x.cols()), [&](int64_t begin, int64_t end) { layer_norm_rows(a, begin, end); });
  return Status::ok();
}

}  // namespace

CpuOp cpu_layer_norm() { return plain_op<LayerNorm, can_layer_norm, run_layer_norm>(); }

}  // namespace tendon
