// layer_norm, rms_norm, ada_rms_norm: a block a row, statistics in f32, one rounding at the store.
//   layer_norm:   (x - mean) / sqrt(var + eps) · gain + bias
//   rms_norm:     x / sqrt(mean(x²) + eps) · (1 + gain)
//   ada_rms_norm: x / sqrt(mean(x²) + eps) · (1 + scale) + shift
// x, out (M, W) bf16 or f32, out also codes with scales, of the results rounded to bf16; vectors (W) f32. A row is read
// once and kept in registers (W ≤ 8192): eight neighbouring values a thread where rows are bf16 and aligned, else every
// 256th. Many such rows of W ≤ 2048 are taken by a wave each.
#include <type_traits>

#include "backend/gpu/aligned_rows.h"
#include "backend/gpu/codes.cuh"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

enum class Norm { kLayer, kRms, kAdaRms };
constexpr int kThreads = 256;
constexpr int kKept = 32;  // values a thread keeps: W ≤ 8192
constexpr int kMaxOctets = 1024;

template <Norm kNorm, class X, class O>
TENDON_KERNEL void __launch_bounds__(kThreads)
    norm_kernel(const X* x, int64_t x_stride, const float* gain, const float* bias, O* out, int64_t out_stride,
                int cols, float eps) {
  constexpr int kWaves = kThreads / kWarpSize;
  TENDON_SHARED(float, shared, 2 * kWaves);
  const X* const row = x + blockIdx.x * x_stride;
  O* const to = out + blockIdx.x * out_stride;
  float kept[kKept];
  float sum = 0;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int col = i * kThreads + static_cast<int>(threadIdx.x);
    kept[i] = col < cols ? widen(row[col]) : 0.0F;
    sum += kept[i];
    squares += kept[i] * kept[i];
  }
  const auto width = static_cast<float>(cols);
  float mean = 0;
  if constexpr (kNorm == Norm::kLayer) {
    mean = block_sum(sum, shared) / width;
    squares = 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int col = i * kThreads + static_cast<int>(threadIdx.x);
      const float d = col < cols ? kept[i] - mean : 0.0F;
      squares += d * d;
    }
  }
  const float scale = fast_inverse_root(block_sum(squares, shared + kWaves) / width + eps);
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int col = i * kThreads + static_cast<int>(threadIdx.x);
    if (col >= cols) continue;
    const float normed = (kept[i] - mean) * scale;
    float value;
    if constexpr (kNorm == Norm::kLayer) {
      value = normed * gain[col] + bias[col];
    } else if constexpr (kNorm == Norm::kRms) {
      value = normed * (1.0F + gain[col]);
    } else {
      value = normed * (1.0F + gain[col]) + bias[col];
    }
    to[col] = narrow<O>(value);
  }
}

// Rows in octets. A row has a block, one octet a thread, or, where there are many rows, a wave (kWave): no barriers,
// and enough loads under way for all of the memory's rate. `scales`: of codes alone.
template <Norm kNorm, class O, int kOctets, bool kWave>
TENDON_KERNEL void __launch_bounds__(kWave ? kThreads : kMaxOctets)
    norm_octets_kernel(const Bf16* x, int64_t x_stride, const float* gain, const float* bias, O* out,
                       int64_t out_stride, int rows, int cols, float eps, float* scales) {
  constexpr int kMostWaves = kMaxOctets / kWarpSize;
  TENDON_SHARED(float, shared, 3 * kMostWaves);
  const int64_t row = kWave ? blockIdx.x * (kThreads / kWarpSize) + wave() : blockIdx.x;
  const int first_col = (kWave ? lane() : static_cast<int>(threadIdx.x)) * 8;
  const auto col_of = [&](int octet) { return first_col + octet * kWarpSize * 8; };
  const auto row_sum = [&](float value, float* own) { return kWave ? wave_sum(value) : block_sum(value, own); };
  launch_dependents();
  float gains[8] = {};
  float shifts[8] = {};
  const auto load_gains = [&](int col) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const Vec<float> g = load_vec(gain + col + i);
      Vec<float> b{};
      if constexpr (kNorm != Norm::kRms) b = load_vec(bias + col + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        gains[i + j] = kNorm == Norm::kLayer ? g.v[j] : 1.0F + g.v[j];
        shifts[i + j] = b.v[j];
      }
    }
  };
  if (!kWave && first_col < cols) load_gains(first_col);
  wait_for_producers();
  if (row >= rows) return;
  Vec<Bf16> kept[kOctets] = {};
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
    if (col_of(o) < cols) kept[o] = load_vec(x + row * x_stride + col_of(o));
  }
  const auto width = static_cast<float>(cols);
  float mean = 0;
  if constexpr (kNorm == Norm::kLayer) {
    float sum = 0;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += widen(kept[o].v[i]);
    }
    mean = row_sum(sum, shared) / width;
  }
  float squares = 0;
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
    if (col_of(o) >= cols) continue;
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += (widen(kept[o].v[i]) - mean) * (widen(kept[o].v[i]) - mean);
  }
  const float scale = fast_inverse_root(row_sum(squares, shared + kMostWaves) / width + eps);
  float largest = 0.0F;  // of the results
#pragma unroll
  for (int o = 0; o < kOctets; ++o) {
    if (col_of(o) >= cols) continue;
    if (kWave) load_gains(col_of(o));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      kept[o].v[i] = narrow<Bf16>((widen(kept[o].v[i]) - mean) * scale * gains[i] + shifts[i]);
      if constexpr (!std::is_same_v<O, Bf16>) largest = fmaxf(largest, code_size(widen(kept[o].v[i])));
    }
    if constexpr (std::is_same_v<O, Bf16>) store_vec(out + row * out_stride + col_of(o), kept[o]);
  }
  if constexpr (!std::is_same_v<O, Bf16>) {
    const CodeScale<O> of_row(kWave ? wave_max(largest) : block_max(largest, shared + 2 * kMostWaves));
    if (first_col == 0) scales[row] = of_row.factor;
#pragma unroll
    for (int o = 0; o < kOctets; ++o) {
      if (col_of(o) >= cols) continue;
      const auto at = [&](int i) { return widen(kept[o].v[i]); };
      struct alignas(8) Codes {
        uint32_t four[2];
      };
      const Codes codes = {{of_row.four(at(0), at(1), at(2), at(3)), of_row.four(at(4), at(5), at(6), at(7))}};
      *reinterpret_cast<Codes*>(out + row * out_stride + col_of(o)) = codes;
    }
  }
}

bool takes_octets(const Tensor& t) { return rows_of_octets(t) && t.cols() <= kMaxOctets * 8; }
bool codes_in_octets(const Tensor& t) {
  return is_scaled(t.dtype) && t.row_stride % 8 == 0 && reinterpret_cast<uintptr_t>(t.data) % 8 == 0;
}

template <Norm kNorm, class O>
void launch_norm_octets(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& out, float eps,
                        Stream stream) {
  const auto run = [&]<int kOctets, bool kWave>(std::integral_constant<int, kOctets>, std::bool_constant<kWave>) {
    constexpr int kWaves = kThreads / kWarpSize;
    const int64_t blocks = kWave ? ceil_div(x.rows(), kWaves) : x.rows();
    const int64_t threads = kWave ? kThreads : ceil_div(x.cols(), 8 * kWarpSize) * kWarpSize;
    launch<norm_octets_kernel<kNorm, O, kOctets, kWave>>({.grid = dim3(static_cast<unsigned>(blocks)),
                                                          .block = dim3(static_cast<unsigned>(threads)),
                                                          .stream = stream,
                                                          .overlaps = true},
                                                         x.as<Bf16>(), x.row_stride, gain.as<float>(), bias.as<float>(),
                                                         out.as<O>(), out.row_stride, static_cast<int>(x.rows()),
                                                         static_cast<int>(x.cols()), eps, out.scales);
  };
  constexpr int kNarrow = (1280 / 8 + kWarpSize - 1) / kWarpSize;  // octets a lane
  constexpr int kWide = 2048 / 8 / kWarpSize;
  if (x.rows() < kManyRows || x.cols() > 2048) {
    run(std::integral_constant<int, 1>{}, std::bool_constant<false>{});
  } else if (x.cols() <= kNarrow * 8 * kWarpSize) {
    run(std::integral_constant<int, kNarrow>{}, std::bool_constant<true>{});
  } else {
    run(std::integral_constant<int, kWide>{}, std::bool_constant<true>{});
  }
}

template <Norm kNorm>
void launch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& out, float eps, Stream stream) {
  if (x.elements() == 0) return;
  if (out.dtype == DType::kE4m3) return launch_norm_octets<kNorm, E4m3>(x, gain, bias, out, eps, stream);
  if (out.dtype == DType::kI8) return launch_norm_octets<kNorm, int8_t>(x, gain, bias, out, eps, stream);
  if (takes_octets(x) && takes_octets(out) && is_aligned(gain.data) && is_aligned(bias.data)) {
    return launch_norm_octets<kNorm, Bf16>(x, gain, bias, out, eps, stream);
  }
  with_float_type(x.dtype, [&]<class X>(X) {
    with_float_type(out.dtype, [&]<class O>(O) {
      launch<norm_kernel<kNorm, X, O>>({.grid = static_cast<unsigned>(x.rows()), .block = kThreads, .stream = stream},
                                       x.as<X>(), x.row_stride, gain.as<float>(), bias.as<float>(), out.as<O>(),
                                       out.row_stride, static_cast<int>(x.cols()), eps);
    });
  });
}

}  // namespace

bool norm_makes_codes(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& out) {
  return takes_octets(x) && codes_in_octets(out) && is_aligned(gain.data) && is_aligned(bias.data);
}
void launch_layer_norm(const LayerNorm& a, Stream stream) {
  launch_norm<Norm::kLayer>(a.x, a.gain, a.bias, a.out, a.eps, stream);
}
void launch_rms_norm(const RmsNorm& a, Stream stream) {
  launch_norm<Norm::kRms>(a.x, a.gain, {}, a.out, a.eps, stream);
}
void launch_ada_rms_norm(const AdaRmsNorm& a, Stream stream) {
  launch_norm<Norm::kAdaRms>(a.x, a.scale, a.shift, a.out, a.eps, stream);
}

}  // namespace tendon::gpu
