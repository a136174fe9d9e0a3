// cast to codes: out[r] = code(x[r] · c / m), scales[r] = m / c with m = max |x[r]| and the largest code c (RowScale of
// base/dtype.h).
//   x (M, K) bf16 or f32, out (M, K) e4m3 (c = 448) or i8 (c = 127).
// A block takes a row: its threads look for m, then read the row once more, from the nearest cache. Bytes moved: x and
// out once.
#include "backend/gpu/codes.cuh"
#include "backend/gpu/gpu_rt.h"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

constexpr int kThreads = 256;

template <class X>
TENDON_DEVICE Vec<X> load_some(const X* row, int64_t col, int64_t cols, bool whole) {
  if (whole) return load_vec(row + col);
  Vec<X> values = {};
#pragma unroll
  for (int i = 0; i < Vec<X>::kSize; ++i) {
    if (col + i < cols) values.v[i] = row[col + i];
  }
  return values;
}

// `vectors`: 16-byte loads of x, and stores of as many codes, are aligned.
template <class X, class Code>
TENDON_KERNEL void __launch_bounds__(kThreads)
    quantize_rows_kernel(const X* x, int64_t x_stride, Code* out, int64_t out_stride, float* scales, int64_t cols,
                         bool vectors) {
  constexpr int kStep = Vec<X>::kSize;
  TENDON_SHARED(float, largest_of_waves, kThreads / kWarpSize);
  wait_for_producers();
  const int64_t r = blockIdx.x;
  const X* const row = x + r * x_stride;
  Code* const to = out + r * out_stride;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kStep;

  float largest = 0.0F;
  for (int64_t col = first; col < cols; col += kThreads * kStep) {
    const Vec<X> values = load_some(row, col, cols, vectors && col + kStep <= cols);
#pragma unroll
    for (int i = 0; i < kStep; ++i) largest = fmaxf(largest, code_size(widen(values.v[i])));
  }
  const CodeScale<Code> scale(block_max(largest, largest_of_waves));
  if (threadIdx.x == 0) scales[r] = scale.factor;

  for (int64_t col = first; col < cols; col += kThreads * kStep) {
    const bool whole = vectors && col + kStep <= cols;
    const Vec<X> values = load_some(row, col, cols, whole);
    uint32_t packed[kStep / 4];
#pragma unroll
    for (int i = 0; i < kStep / 4; ++i) {
      const auto at = [&](int j) { return widen(values.v[4 * i + j]); };
      packed[i] = scale.four(at(0), at(1), at(2), at(3));
    }
    if (whole) {
      struct alignas(kStep) Numbers {
        uint32_t word[kStep / 4];
      };
      Numbers numbers;
#pragma unroll
      for (int i = 0; i < kStep / 4; ++i) numbers.word[i] = packed[i];
      *reinterpret_cast<Numbers*>(to + col) = numbers;
      continue;
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      if (col + i < cols) reinterpret_cast<uint8_t*>(to)[col + i] = static_cast<uint8_t>(packed[i / 4] >> (i % 4 * 8));
    }
  }
}

}  // namespace

void launch_quantize_rows(const Cast& a, Stream stream) {
  if (a.out.rows() == 0) return;
  const auto run = [&]<class Code>(Code) {
    with_float_type(a.x.dtype, [&]<class X>(X) {
      const auto step = static_cast<int64_t>(Vec<X>::kSize);
      const bool vectors = reinterpret_cast<uintptr_t>(a.x.data) % 16 == 0 && a.x.row_stride % step == 0 &&
                           reinterpret_cast<uintptr_t>(a.out.data) % static_cast<uintptr_t>(step) == 0 &&
                           a.out.row_stride % step == 0;
      launch<quantize_rows_kernel<X, Code>>(
          {.grid = static_cast<unsigned>(a.out.rows()), .block = kThreads, .stream = stream, .overlaps = true},
          a.x.as<X>(), a.x.row_stride, a.out.as<Code>(), a.out.row_stride, a.out.scales, a.out.cols(), vectors);
    });
  };
  if (a.out.dtype == DType::kE4m3) {
    run(E4m3{});
  } else {
    run(int8_t{});
  }
}

}  // namespace tendon::gpu
