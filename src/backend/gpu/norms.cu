// layer_norm, rms_norm, ada_rms_norm: one block a row, statistics in f32, one rounding at the store.
//   layer_norm:   (x - mean) / sqrt(var + eps) · gain + bias
//   rms_norm:     x / sqrt(mean(x²) + eps) · (1 + gain)
//   ada_rms_norm: x / sqrt(mean(x²) + eps) · (1 + scale) + shift
// x, out (M, W) bf16 or f32; vectors (W) f32. A row is read once from memory and kept in registers (W ≤ 8192) or read
// again from the cache.
#include "backend/gpu/device/prelude.cuh"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

enum class Norm { kLayer, kRms, kAdaRms };
constexpr int kThreads = 256;
constexpr int kKept = 32;  // values a thread keeps: W ≤ 8192

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

template <Norm kNorm>
void launch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& out, float eps, Stream stream) {
  if (x.elements() == 0) return;
  with_float_type(x.dtype, [&]<class X>(X) {
    with_float_type(out.dtype, [&]<class O>(O) {
      launch<norm_kernel<kNorm, X, O>>({.grid = static_cast<unsigned>(x.rows()), .block = kThreads, .stream = stream},
                                       x.as<X>(), x.row_stride, gain.as<float>(), bias.as<float>(), out.as<O>(),
                                       out.row_stride, static_cast<int>(x.cols()), eps);
    });
  });
}

}  // namespace

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
