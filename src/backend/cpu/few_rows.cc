// A pair of bf16 weights is one 32-bit lane: shifted left it is the even weight as f32, masked it is the odd one. So 32
// weights cost one load and two integer operations, no shuffles, if x is packed the same way; f32 weights are brought
// into that order by two permutes. Each block keeps (rows of x) × (rows of w) accumulators of 16 lanes in registers:
// sums[m][n] is the sum of 16 partial sums in k order, whatever the type of w.
//
// Measured with bf16 weights that stream from memory (17-19 GB/s on 2 cores of a Xeon of the 4th generation), 10 rows,
// K = 1024 and 4096, GFLOP/s: this 165 (16.5 GB/s), oneDNN bf16 75-95, oneDNN f32 75 (15 GB/s of f32 weights).
// Prefetching two blocks ahead into the second-level cache gives 165; one block ahead into the first level 110-150;
// none 75-125.
#include "backend/cpu/few_rows.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "backend/cpu/tile.h"
#include "base/check.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12's own header starts from an undefined register
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#define TENDON_AVX512 __attribute__((target("avx512f,avx512bw")))
#endif

namespace tendon {

TENDON_CPU_CLONES void few_rows_pack(const Tensor& x, int64_t begin, int64_t end, float* packed) {
  const int64_t k = x.cols();
  const int64_t stride = few_rows_stride(k);
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t col = 0; col < stride; col += 32) {
      float tile[32] = {};
      const int64_t count = std::min<int64_t>(32, k - col);
      const float* values = load_tile(x, row, col, count, tile);
      if (count < 32 && values != tile) {
        std::copy_n(values, count, tile);
        values = tile;
      }
      float* out = packed + row * stride + col;
      for (int64_t i = 0; i < 16; ++i) {
        out[i] = values[2 * i];
        out[16 + i] = values[2 * i + 1];
      }
    }
  }
}

#ifdef TENDON_AVX512

namespace {

struct Pair {
  __m512 even, odd;
};

TENDON_AVX512 inline Pair split(__m512i pairs) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000U))))};
}
TENDON_AVX512 inline Pair split(__m512 low, __m512 high) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return {_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)};
}

TENDON_AVX512 inline Pair load_pair(const uint16_t* w) { return split(_mm512_loadu_si512(w)); }
TENDON_AVX512 inline Pair load_pair(const float* w) { return split(_mm512_loadu_ps(w), _mm512_loadu_ps(w + 16)); }
// The first `count` < 32 weights, then zeros.
TENDON_AVX512 inline Pair load_pair(const uint16_t* w, int64_t count) {
  return split(_mm512_maskz_loadu_epi16((uint32_t{1} << count) - 1, w));
}
TENDON_AVX512 inline Pair load_pair(const float* w, int64_t count) {
  const uint32_t mask = (uint32_t{1} << count) - 1;
  return split(_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), w),
               _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), w + 16));
}

template <int kM, int kN>
TENDON_AVX512 inline __attribute__((always_inline)) void accumulate(__m512 (&acc)[kN][kM], const Pair (&weights)[kN],
                                                                    const float* x, int64_t stride) {
#pragma GCC unroll 16
  for (int m = 0; m < kM; ++m) {
    const __m512 even = _mm512_loadu_ps(x + m * stride);
    const __m512 odd = _mm512_loadu_ps(x + m * stride + 16);
#pragma GCC unroll 8
    for (int n = 0; n < kN; ++n) {
      acc[n][m] = _mm512_fmadd_ps(weights[n].even, even, acc[n][m]);
      acc[n][m] = _mm512_fmadd_ps(weights[n].odd, odd, acc[n][m]);
    }
  }
}

template <int kM, int kN, class W>
TENDON_AVX512 void product_block(const float* x, int64_t k, const W* w, float* sums, int64_t sums_stride) {
  const int64_t stride = few_rows_stride(k);
  __m512 acc[kN][kM];
#pragma GCC unroll 8
  for (int n = 0; n < kN; ++n) {
#pragma GCC unroll 16
    for (int m = 0; m < kM; ++m) acc[n][m] = _mm512_setzero_ps();
  }
  Pair weights[kN];
  int64_t i = 0;
  for (; i + 32 <= k; i += 32) {
#pragma GCC unroll 8
    for (int n = 0; n < kN; ++n) {
      const W* later = w + (n + 2 * kN) * k + i;
      _mm_prefetch(reinterpret_cast<const char*>(later), _MM_HINT_T1);
      if constexpr (sizeof(W) == 4) _mm_prefetch(reinterpret_cast<const char*>(later + 16), _MM_HINT_T1);
      weights[n] = load_pair(w + n * k + i);
    }
    accumulate<kM, kN>(acc, weights, x + i, stride);
  }
  if (i < k) {
#pragma GCC unroll 8
    for (int n = 0; n < kN; ++n) weights[n] = load_pair(w + n * k + i, k - i);
    accumulate<kM, kN>(acc, weights, x + i, stride);
  }
#pragma GCC unroll 8
  for (int n = 0; n < kN; ++n) {
#pragma GCC unroll 16
    for (int m = 0; m < kM; ++m) sums[m * sums_stride + n] = _mm512_reduce_add_ps(acc[n][m]);
  }
}

// `count` rows of w, all rows of x: in groups of at most 5, so that a group stays in the first-level cache and 4 rows
// of w (8 for at most 3) share each load of it.
template <int kM, int kN, class W>
void product_group(const float* x, int64_t k, const W* w, int64_t count, float* sums, int64_t sums_stride) {
  if (count == kN) {
    product_block<kM, kN>(x, k, w, sums, sums_stride);
  } else {
    for (int64_t n = 0; n < count; ++n) product_block<kM, 1>(x, k, w + n * k, sums + n, sums_stride);
  }
}

template <class W>
void product_rows(const float* x, int64_t m, int64_t k, const W* w, int64_t count, float* sums, int64_t sums_stride) {
  const int64_t stride = few_rows_stride(k);
  const int64_t groups = (m + 4) / 5;
  const int64_t block = m <= 3 ? 8 : 4;
  for (int64_t n = 0; n < count; n += block) {
    const int64_t rows = std::min(block, count - n);
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t begin = m * group / groups;
      const float* first = x + begin * stride;
      float* out = sums + begin * sums_stride + n;
      switch (m * (group + 1) / groups - begin) {
        case 1:
          product_group<1, 8>(first, k, w + n * k, rows, out, sums_stride);
          break;
        case 2:
          product_group<2, 8>(first, k, w + n * k, rows, out, sums_stride);
          break;
        case 3:
          product_group<3, 8>(first, k, w + n * k, rows, out, sums_stride);
          break;
        case 4:
          product_group<4, 4>(first, k, w + n * k, rows, out, sums_stride);
          break;
        default:
          product_group<5, 4>(first, k, w + n * k, rows, out, sums_stride);
          break;
      }
    }
  }
}

}  // namespace

bool few_rows_available() { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"); }

void few_rows_product(const float* packed, int64_t m, const Tensor& w, int64_t first, int64_t count, float* sums,
                      int64_t sums_stride) {
  const int64_t k = w.cols();
  if (w.dtype == DType::kBf16) {
    product_rows(packed, m, k, w.as<const uint16_t>() + first * k, count, sums, sums_stride);
  } else {
    product_rows(packed, m, k, w.as<const float>() + first * k, count, sums, sums_stride);
  }
}

#else

bool few_rows_available() { return false; }
void few_rows_product(const float*, int64_t, const Tensor&, int64_t, int64_t, float*, int64_t) {
  TENDON_CHECK(false, "few_rows_product needs AVX-512");
}

#endif

}  // namespace tendon
