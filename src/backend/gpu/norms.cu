// layer_norm, rms_norm, ada_rms_norm: one block a row, statistics in f32, one rounding at the store.
//   layer_norm:   (x - mean) / sqrt(var + eps) · gain + bias
//   rms_norm:     x / sqrt(mean(x²) + eps) · (1 + gain)
//   ada_rms_norm: x / sqrt(mean(x²) + eps) · (1 + scale) + shift
// x, out (M, W) bf16 or f32, out also codes with scales, of the results rounded to bf16; vectors (W) f32. A row is read
// once and kept in registers (W ≤ 8192): eight neighbouring values a thread where rows are bf16 and aligned, else every
// 256th.
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
  TENDON_SHARED(float, shared, kThreads / kWarpSize);
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
  const float scale = 1.0F / sqrtf(block_sum(squares, shared) / width + eps);
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

// One octet a thread. `scales`: of codes alone.
template <Norm kNorm, class O>
TENDON_KERNEL void norm_octets_kernel(const Bf16* x, int64_t x_stride, const float* gain, const float* bias, O* out,
                                      int64_t out_stride, int cols, float eps, float* scales) {
  TENDON_SHARED(float, shared, kMaxOctets / kWarpSize);
  const int col = static_cast<int>(threadIdx.x) * 8;
  const bool valid = col < cols;
  launch_dependents();
  float kept[8] = {};
  float gains[8] = {};
  float shifts[8] = {};
  if (valid) {
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
  }
  wait_for_producers();
  if (valid) {
    const Vec<Bf16> octet = load_vec(x + blockIdx.x * x_stride + col);
#pragma unroll
    for (int i = 0; i < 8; ++i) kept[i] = widen(octet.v[i]);
  }
  const auto width = static_cast<float>(cols);
  float mean = 0;
  if constexpr (kNorm == Norm::kLayer) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += kept[i];
    mean = block_sum(sum, shared) / width;
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += valid ? (kept[i] - mean) * (kept[i] - mean) : 0.0F;
  const float scale = 1.0F / sqrtf(block_sum(squares, shared) / width + eps);
  if constexpr (std::is_same_v<O, Bf16>) {
    if (!valid) return;
    Vec<Bf16> result;
#pragma unroll
    for (int i = 0; i < 8; ++i) result.v[i] = narrow<Bf16>((kept[i] - mean) * scale * gains[i] + shifts[i]);
    store_vec(out + blockIdx.x * out_stride + col, result);
  } else {
    float results[8];
    float largest = 0.0F;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      results[i] = valid ? rounded<Bf16>((kept[i] - mean) * scale * gains[i] + shifts[i]) : 0.0F;
      largest = fmaxf(largest, code_size(results[i]));
    }
    const CodeScale<O> of_row(block_max(largest, shared));
    if (threadIdx.x == 0) scales[blockIdx.x] = of_row.factor;
    if (!valid) return;
    struct alignas(8) Codes {
      uint32_t four[2];
    };
    const Codes codes = {{of_row.four(results[0], results[1], results[2], results[3]),
                          of_row.four(results[4], results[5], results[6], results[7])}};
    *reinterpret_cast<Codes*>(out + blockIdx.x * out_stride + col) = codes;
  }
}

bool takes_octets(const Tensor& t) { return rows_of_octets(t) && t.cols() <= kMaxOctets * 8; }
bool codes_in_octets(const Tensor& t) {
  return is_scaled(t.dtype) && t.row_stride % 8 == 0 && reinterpret_cast<uintptr_t>(t.data) % 8 == 0;
}

template <Norm kNorm, class O>
void launch_norm_octets(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& out, float eps,
                        Stream stream) {
  const auto threads = static_cast<unsigned>(ceil_div(x.cols(), 8 * kWarpSize) * kWarpSize);
  launch<norm_octets_kernel<kNorm, O>>(
      {.grid = dim3(static_cast<unsigned>(x.rows())), .block = dim3(threads), .stream = stream, .overlaps = true},
      x.as<Bf16>(), x.row_stride, gain.as<float>(), bias.as<float>(), out.as<O>(), out.row_stride,
      static_cast<int>(x.cols()), eps, out.scales);
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
