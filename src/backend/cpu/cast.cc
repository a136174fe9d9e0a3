// cast: out = x in out's type; to codes with a scale for each row, of x or x times factors; from such codes.
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "backend/cpu/op_table.h"
#include "backend/cpu/tile.h"

namespace tendon {
namespace {

// Numbers col..col+count of a row, times their factors.
TENDON_CPU_INLINE const float* load_scaled(const Cast& a, int64_t row, int64_t col, int64_t count, float* tile) {
  const float* const values = load_tile(a.x, row, col, count, tile);
  if (a.factors.data == nullptr) return values;
  const float* const factors = a.factors.as<const float>() + col;
  for (int64_t i = 0; i < count; ++i) tile[i] = values[i] * factors[i];
  return tile;
}

// Infinite where a number is not finite.
TENDON_CPU_CLONES float largest_magnitude(const Cast& a, int64_t row) {
  float tile[kTile];
  float largest = 0.0F;
  bool finite = true;
  for (int64_t col = 0; col < a.x.cols(); col += kTile) {
    const int64_t count = std::min(kTile, a.x.cols() - col);
    const float* values = load_scaled(a, row, col, count, tile);
    for (int64_t i = 0; i < count; ++i) {
      largest = std::max(largest, std::abs(values[i]));
      finite = finite && std::abs(values[i]) <= std::numeric_limits<float>::max();
    }
  }
  return finite ? largest : std::numeric_limits<float>::infinity();
}

TENDON_CPU_CLONES void quantize_rows(const Cast& a, int64_t begin, int64_t end) {
  float tile[kTile];
  const int64_t width = a.out.cols();
  for (int64_t row = begin; row < end; ++row) {
    const RowScale scale(a.unit_scales ? 0.0F : largest_magnitude(a, row), a.out.dtype);
    a.out.scales[row] = scale.factor;
    for (int64_t col = 0; col < width; col += kTile) {
      const int64_t count = std::min(kTile, width - col);
      const float* values = load_scaled(a, row, col, count, tile);
      if (a.out.dtype == DType::kE4m3) {
        auto* const out = row_pointer<E4m3>(a.out, row, col);
        for (int64_t i = 0; i < count; ++i) out[i] = to_e4m3(values[i] * scale.inverse);
      } else {
        auto* const out = row_pointer<int8_t>(a.out, row, col);
        for (int64_t i = 0; i < count; ++i) out[i] = to_i8(values[i] * scale.inverse);
      }
    }
  }
}

template <class Code>
TENDON_CPU_INLINE void widen_codes(const Cast& a, int64_t row, int64_t col, int64_t count, float* numbers) {
  const auto* const codes = row_pointer<const Code>(a.x, row, col);
  const float scale = a.x.scales[row];
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<Code, E4m3>) {
      numbers[i] = to_float(codes[i]) * scale;
    } else {
      numbers[i] = static_cast<float>(codes[i]) * scale;
    }
  }
}

TENDON_CPU_CLONES void cast_codes(const Cast& a, int64_t begin, int64_t end) {
  float tile[kTile];
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t col = 0; col < a.out.cols(); col += kTile) {
      const int64_t count = std::min(kTile, a.out.cols() - col);
      float* const numbers = tile_target(a.out, row, col, tile);
      if (a.x.dtype == DType::kE4m3) {
        widen_codes<E4m3>(a, row, col, count, numbers);
      } else {
        widen_codes<int8_t>(a, row, col, count, numbers);
      }
      store_tile(a.out, row, col, count, numbers);
    }
  }
}

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

bool can_cast(const Cast& a) {
  return is_scaled(a.x.dtype) ? all_float(a.out) : all_float(a.x) && (all_float(a.out) || is_scaled(a.out.dtype));
}

Status run_cast(const Cast& a, const char*) {
  const auto rows = is_scaled(a.x.dtype) ? cast_codes : is_scaled(a.out.dtype) ? quantize_rows : cast_rows;
  parallel_for(a.out.rows(), row_grain(a.out.cols()), [&](int64_t begin, int64_t end) { rows(a, begin, end); });
  return Status::ok();
}

}  // namespace

CpuOp cpu_cast() { return plain_op<Cast, can_cast, run_cast>(); }

}  // namespace tendon
