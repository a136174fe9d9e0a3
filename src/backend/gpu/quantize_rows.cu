// cast to codes: out[r] = code(x[r] · c / m), scales[r] = m / c with m = max |x[r]| and the largest code c (RowScale of
// base/dtype.h).
//   x (M, K) bf16 or f32, out (M, K) e4m3 (c = 448) or i8 (c = 127).
// A block takes a row: its threads look for m and hold the row's numbers meanwhile; a row of other sizes is read once
// more, from the nearest cache. Bytes moved: x and out once. With factors (K) f32, x[r] · factors takes the place of
// x[r], and with unit scales m / c is 1: casts of weights, and where no other kernel makes codes with static scales.
#include <type_traits>

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

template <class Code, int kStep>
TENDON_DEVICE void pack(const CodeScale<Code>& scale, const float (&numbers)[kStep], uint32_t (&packed)[kStep / 4]) {
#pragma unroll
  for (int i = 0; i < kStep; i += 4) {
    packed[i / 4] = scale.four(numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3]);
  }
}
template <int kCount>
TENDON_DEVICE void store_codes(void* to, const uint32_t (&packed)[kCount]) {
  struct alignas(4 * kCount) Numbers {
    uint32_t word[kCount];
  };
  Numbers numbers;
#pragma unroll
  for (int i = 0; i < kCount; ++i) numbers.word[i] = packed[i];
  *static_cast<Numbers*>(to) = numbers;
}
template <class X>
TENDON_DEVICE float largest_of(const Vec<X>& values, float largest) {
#pragma unroll
  for (int i = 0; i < Vec<X>::kSize; ++i) largest = fmaxf(largest, code_size(widen(values.v[i])));
  return largest;
}

// `vectors`: 16-byte loads of x, and stores of as many codes, are aligned. With kFactors of x[r] · factors (weights
// once at the start, and what no other kernel writes as codes); `unit`: with unit scales.
template <bool kFactors, class X, class Code>
TENDON_KERNEL void __launch_bounds__(kThreads)
    quantize_rows_kernel(const X* x, int64_t x_stride, const float* factors, Code* out, int64_t out_stride,
                         float* scales, int64_t cols, bool vectors, bool unit) {
  constexpr int kStep = Vec<X>::kSize;
  TENDON_SHARED(float, largest_of_waves, kThreads / kWarpSize);
  launch_dependents();
  wait_for_producers();
  const int64_t r = blockIdx.x;
  const X* const row = x + r * x_stride;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * kStep;
  float numbers[kStep];
  const auto load = [&](int64_t col) {
    const Vec<X> values = load_some(row, col, cols, vectors && col + kStep <= cols);
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      numbers[i] = widen(values.v[i]);
      if constexpr (kFactors) numbers[i] = col + i < cols ? numbers[i] * factors[col + i] : 0.0F;
    }
  };
  float largest = 0.0F;  // makes the scale 1
  if (!unit) {
    for (int64_t col = first; col < cols; col += kThreads * kStep) {
      load(col);
#pragma unroll
      for (int i = 0; i < kStep; ++i) largest = fmaxf(largest, code_size(numbers[i]));
    }
    largest = block_max(largest, largest_of_waves);
  }
  const CodeScale<Code> scale(largest);
  if (threadIdx.x == 0) scales[r] = scale.factor;
  for (int64_t col = first; col < cols; col += kThreads * kStep) {
    load(col);
    uint32_t packed[kStep / 4];
    pack(scale, numbers, packed);
    Code* const to = out + r * out_stride + col;
    if (vectors && col + kStep <= cols) {
      store_codes(to, packed);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      if (col + i < cols) reinterpret_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(packed[i / 4] >> (i % 4 * 8));
    }
  }
}

// The same for rows of whole vectors, at most kHeld a thread: read once, all of it under way at the same time. A row
// has a block or, of many, a wave.
template <int kHeld, bool kWave, class X, class Code>
TENDON_KERNEL void __launch_bounds__(kThreads)
    quantize_held_kernel(const X* x, int64_t x_stride, Code* out, int64_t out_stride, float* scales, int rows,
                         int cols) {
  constexpr int kStep = Vec<X>::kSize;
  constexpr int kRowThreads = kWave ? kWarpSize : kThreads;
  TENDON_SHARED(float, largest_of_waves, kThreads / kWarpSize);
  launch_dependents();
  wait_for_producers();
  const int64_t r = kWave ? blockIdx.x * (kThreads / kWarpSize) + wave() : blockIdx.x;
  if (r >= rows) return;
  const X* const row = x + r * x_stride;
  Code* const to = out + r * out_stride;
  const int first = (kWave ? lane() : static_cast<int>(threadIdx.x)) * kStep;

  Vec<X> held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int col = first + i * kRowThreads * kStep;
    held[i] = col < cols ? load_vec(row + col) : Vec<X>{};
  }
  float largest = 0.0F;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) largest = largest_of(held[i], largest);
  const CodeScale<Code> scale(kWave ? wave_max(largest) : block_max(largest, largest_of_waves));
  if (first == 0) scales[r] = scale.factor;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int col = first + i * kRowThreads * kStep;
    float numbers[kStep];
#pragma unroll
    for (int j = 0; j < kStep; ++j) numbers[j] = widen(held[i].v[j]);
    uint32_t packed[kStep / 4];
    pack(scale, numbers, packed);
    if (col < cols) store_codes(to + col, packed);
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
      const auto shape = [&](int64_t blocks) {
        return LaunchShape{
            .grid = static_cast<unsigned>(blocks), .block = kThreads, .stream = stream, .overlaps = true};
      };
      const int64_t rows = a.out.rows();
      const int64_t of_all_threads = kThreads * step;
      const auto run_held = [&]<int kHeld, bool kWave>(std::integral_constant<int, kHeld>, std::bool_constant<kWave>) {
        launch<quantize_held_kernel<kHeld, kWave, X, Code>>(
            shape(kWave ? ceil_div(rows, kThreads / kWarpSize) : rows), a.x.as<X>(), a.x.row_stride, a.out.as<Code>(),
            a.out.row_stride, a.out.scales, static_cast<int>(rows), static_cast<int>(a.out.cols()));
      };
      const auto run_any = [&]<bool kFactors>(std::bool_constant<kFactors>) {
        launch<quantize_rows_kernel<kFactors, X, Code>>(shape(rows), a.x.as<X>(), a.x.row_stride, a.factors.as<float>(),
                                                        a.out.as<Code>(), a.out.row_stride, a.out.scales, a.out.cols(),
                                                        vectors, a.unit_scales);
      };
      if (a.factors.defined()) {
        run_any(std::true_type{});
      } else if (!vectors || a.out.cols() % step != 0 || a.out.cols() > 8 * of_all_threads) {
        run_any(std::false_type{});
      } else if (rows >= kManyRows && a.out.cols() <= 8 * kWarpSize * step) {
        run_held(std::integral_constant<int, 8>{}, std::true_type{});
      } else if (a.out.cols() <= of_all_threads) {
        run_held(std::integral_constant<int, 1>{}, std::false_type{});
      } else {
        run_held(std::integral_constant<int, 8>{}, std::false_type{});
      }
    });
  };
  if (a.out.dtype == DType::kE4m3) {
    run(E4m3{});
  } else {
    run(int8_t{});
  }
}

}  // namespace tendon::gpu
