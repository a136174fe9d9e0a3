// Short runs of a row as floats, in buffers that stay in the first-level cache: kernels load a tile (bf16 is widened),
// compute in f32 and store it (rounded once). Written so that the compiler vectorises it for the function it is
// inlined into.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "base/tensor.h"

// The portable binary carries each hot loop for several instruction sets and picks one at load time. Contraction is
// off everywhere, so all of them give the same numbers.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(TENDON_SANITIZED)
#define TENDON_CPU_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define TENDON_CPU_CLONES
#endif
#define TENDON_CPU_INLINE inline __attribute__((always_inline))

namespace tendon {

constexpr int64_t kTile = 512;

template <class T>
TENDON_CPU_INLINE T* row_pointer(const Tensor& t, int64_t row, int64_t col) {
  return static_cast<T*>(t.data) + row * t.row_stride + col;
}

TENDON_CPU_INLINE void widen(const uint16_t* bits, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(bits[i]) << 16);
}

// to_bf16 of base/dtype.h without a branch.
TENDON_CPU_INLINE uint32_t bf16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40U;
  return (bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded;
}

TENDON_CPU_INLINE void narrow(const float* values, uint16_t* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<uint16_t>(bf16_bits(values[i]));
}

// Rounds to `dtype` and back, in place.
TENDON_CPU_INLINE void round_tile(DType dtype, float* values, int64_t count) {
  if (dtype != DType::kBf16) return;
  for (int64_t i = 0; i < count; ++i) values[i] = std::bit_cast<float>(bf16_bits(values[i]) << 16);
}

// `count` numbers of row `row` from column `col`: in place when they are f32, else widened into `buffer`.
TENDON_CPU_INLINE const float* load_tile(const Tensor& t, int64_t row, int64_t col, int64_t count, float* buffer) {
  if (t.dtype == DType::kF32) return row_pointer<const float>(t, row, col);
  widen(row_pointer<const uint16_t>(t, row, col), buffer, count);
  return buffer;
}

// Where to compute the tile: in place when the tensor is f32, else `buffer`; finish with store_tile.
TENDON_CPU_INLINE float* tile_target(const Tensor& t, int64_t row, int64_t col, float* buffer) {
  return t.dtype == DType::kF32 ? row_pointer<float>(t, row, col) : buffer;
}
TENDON_CPU_INLINE void store_tile(const Tensor& t, int64_t row, int64_t col, int64_t count, const float* values) {
  if (t.dtype == DType::kF32) {
    float* out = row_pointer<float>(t, row, col);
    if (out != values) std::memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
  } else {
    narrow(values, row_pointer<uint16_t>(t, row, col), count);
  }
}

// Eight partial sums in double.
using Double8 = double __attribute__((vector_size(64)));
using Float8 = float __attribute__((vector_size(32), aligned(4), may_alias));

TENDON_CPU_INLINE double sum(const float* x, int64_t count) {
  Double8 partial = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    partial += __builtin_convertvector(*reinterpret_cast<const Float8*>(x + i), Double8);
  }
  double total = 0;
  for (; i < count; ++i) total += static_cast<double>(x[i]);
  for (int lane = 0; lane < 8; ++lane) total += partial[lane];
  return total;
}

// Σ (x - mean)²
TENDON_CPU_INLINE double sum_squares(const float* x, int64_t count, double mean) {
  Double8 partial = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const Double8 d = __builtin_convertvector(*reinterpret_cast<const Float8*>(x + i), Double8) - mean;
    partial += d * d;
  }
  double total = 0;
  for (; i < count; ++i) {
    const double d = static_cast<double>(x[i]) - mean;
    total += d * d;
  }
  for (int lane = 0; lane < 8; ++lane) total += partial[lane];
  return total;
}

// 1 / sqrt(mean(x²) + eps) of one row.
TENDON_CPU_INLINE float inverse_rms(const Tensor& x, int64_t row, float eps) {
  float buffer[kTile];
  const int64_t width = x.cols();
  double squares = 0;
  for (int64_t col = 0; col < width; col += kTile) {
    const int64_t count = width - col < kTile ? width - col : kTile;
    squares += sum_squares(load_tile(x, row, col, count, buffer), count, 0.0);
  }
  return static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(eps)));
}

}  // namespace tendon
