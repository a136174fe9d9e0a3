// rope: rotates the halves of each head by the row's angles.  x, out (M, heads·D), positions (M) i32,
// table (positions, D) f32 = [cos | sin]; f32 arithmetic, one rounding.
// rope_cache does it for a fused product (M, q | k | v) and sends k and v to their cache rows.
#include "backend/gpu/device/prelude.cuh"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

constexpr int kThreads = 256;

// One pair (i, i + D/2) of one head.
template <class X, class O>
TENDON_DEVICE void rotate(const X* from, O* to, const float* angles, int half, int i) {
  const float a = widen(from[i]);
  const float b = widen(from[i + half]);
  const float c = angles[i];
  const float s = angles[i + half];
  to[i] = narrow<O>(a * c - b * s);
  to[i + half] = narrow<O>(b * c + a * s);
}

template <class X, class O>
TENDON_KERNEL void rope_kernel(const X* x, int64_t x_stride, const int32_t* positions, const float* table, O* out,
                               int64_t out_stride, int pairs, int half) {
  const int64_t row = blockIdx.x;
  const float* const angles = table + static_cast<int64_t>(positions[row]) * 2 * half;
  for (int p = static_cast<int>(threadIdx.x); p < pairs; p += kThreads) {
    const int head = p / half * 2 * half;
    rotate(x + row * x_stride + head, out + row * out_stride + head, angles, half, p % half);
  }
}

template <class T>
TENDON_KERNEL void rope_cache_kernel(const T* qkv, int64_t stride, const int32_t* positions, const int32_t* cache_rows,
                                     const float* table, T* q, int64_t q_stride, T* k, T* v, int64_t cache_stride,
                                     int q_pairs, int kv_pairs, int half) {
  const int64_t row = blockIdx.x;
  const T* const from = qkv + row * stride;
  const float* const angles = table + static_cast<int64_t>(positions[row]) * 2 * half;
  const int64_t target = cache_rows[row];
  for (int p = static_cast<int>(threadIdx.x); p < q_pairs + 2 * kv_pairs; p += kThreads) {
    if (p < q_pairs) {
      const int head = p / half * 2 * half;
      rotate(from + head, q + row * q_stride + head, angles, half, p % half);
    } else if (target >= 0 && p < q_pairs + kv_pairs) {
      const int in_k = p - q_pairs;
      const int head = in_k / half * 2 * half;
      rotate(from + 2 * q_pairs + head, k + target * cache_stride + head, angles, half, in_k % half);
    } else if (target >= 0) {
      const int at = 2 * (p - q_pairs - kv_pairs);
      const T* const value = from + 2 * (q_pairs + kv_pairs);
      v[target * cache_stride + at] = value[at];
      v[target * cache_stride + at + 1] = value[at + 1];
    }
  }
}

}  // namespace

void launch_rope(const Rope& a, Stream stream) {
  if (a.x.elements() == 0) return;
  with_float_type(a.x.dtype, [&]<class X>(X) {
    with_float_type(a.out.dtype, [&]<class O>(O) {
      launch<rope_kernel<X, O>>({.grid = static_cast<unsigned>(a.x.rows()), .block = kThreads, .stream = stream},
                                a.x.as<X>(), a.x.row_stride, a.positions.as<int32_t>(), a.table.as<float>(),
                                a.out.as<O>(), a.out.row_stride, static_cast<int>(a.x.cols() / 2),
                                static_cast<int>(a.table.cols() / 2));
    });
  });
}

void launch_rope_cache(const NormQkvRope& a, const Tensor& qkv, Stream stream) {
  const int q_pairs = a.wq.defined() ? static_cast<int>(a.wq.rows() / 2) : 0;
  with_float_type(qkv.dtype, [&]<class T>(T) {
    launch<rope_cache_kernel<T>>({.grid = static_cast<unsigned>(qkv.rows()), .block = kThreads, .stream = stream},
                                 qkv.as<T>(), qkv.row_stride, a.positions.as<int32_t>(), a.cache_rows.as<int32_t>(),
                                 a.table.as<float>(), a.q.as<T>(), a.q.row_stride, a.k_cache.as<T>(), a.v_cache.as<T>(),
                                 a.k_cache.row_stride, q_pairs, static_cast<int>(a.wk.rows() / 2),
                                 static_cast<int>(a.table.cols() / 2));
  });
}

}  // namespace tendon::gpu
