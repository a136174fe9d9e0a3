// rope: rotates the halves of each head by the row's angles.  x, out (M, heads·D), positions (M) i32,
// table (positions, D) f32 = [cos | sin]; f32 arithmetic, one rounding.
// rope_cache does it for a fused product (M, q | k | v) and sends k and v to their cache rows.
#include "backend/gpu/aligned_rows.h"
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

// Eight columns of both halves of one head, or eight columns of v, a thread.
TENDON_KERNEL void rope_cache_octets_kernel(const Bf16* qkv, int64_t stride, const int32_t* positions,
                                            const int32_t* cache_rows, const float* table, Bf16* q, int64_t q_stride,
                                            Bf16* k, Bf16* v, int64_t cache_stride, int q_items, int k_items,
                                            int v_items, int half) {
  launch_dependents();
  wait_for_producers();
  const int64_t row = blockIdx.x;
  const auto item = static_cast<int>(threadIdx.x);
  if (item >= q_items + k_items + v_items) return;
  const Bf16* const from = qkv + row * stride;
  const int64_t target = cache_rows[row];
  if (item >= q_items && target < 0) return;
  if (item >= q_items + k_items) {
    const int col = (item - q_items - k_items) * 8;
    store_vec(v + target * cache_stride + col, load_vec(from + (q_items + k_items) * 16 + col));
    return;
  }
  const bool is_q = item < q_items;
  const int in_part = is_q ? item : item - q_items;
  const int per_head = half / 8;
  const int first = in_part % per_head * 8;               // within the half
  const int col = in_part / per_head * 2 * half + first;  // within q or k
  const Bf16* const source = from + (is_q ? 0 : q_items * 16) + col;
  const Vec<Bf16> a = load_vec(source);
  const Vec<Bf16> b = load_vec(source + half);
  const float* const angles = table + static_cast<int64_t>(positions[row]) * 2 * half + first;
  Vec<Bf16> low;
  Vec<Bf16> high;
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const Vec<float> c = load_vec(angles + i);
    const Vec<float> s = load_vec(angles + half + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float x = widen(a.v[i + j]);
      const float y = widen(b.v[i + j]);
      low.v[i + j] = narrow<Bf16>(x * c.v[j] - y * s.v[j]);
      high.v[i + j] = narrow<Bf16>(y * c.v[j] + x * s.v[j]);
    }
  }
  Bf16* const to = (is_q ? q + row * q_stride : k + target * cache_stride) + col;
  store_vec(to, low);
  store_vec(to + half, high);
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

void launch_rope_cache(const RopeTail& a, const Tensor& qkv, Stream stream) {
  const int half = static_cast<int>(a.table.cols() / 2);
  const auto items = [](const Tensor& part, int64_t columns) {
    return part.defined() ? static_cast<int>(part.cols() / columns) : 0;
  };
  const int threads = items(a.q, 16) + items(a.k_cache, 16) + items(a.v_cache, 8);
  if (rows_of_octets(qkv) && (!a.q.defined() || rows_of_octets(a.q)) && rows_of_octets(a.k_cache) &&
      rows_of_octets(a.v_cache) && half % 8 == 0 && threads <= 1024 && is_aligned(a.table.data)) {
    launch<rope_cache_octets_kernel>({.grid = dim3(static_cast<unsigned>(qkv.rows())),
                                      .block = dim3(static_cast<unsigned>(ceil_div(threads, kWarpSize) * kWarpSize)),
                                      .stream = stream,
                                      .overlaps = true},
                                     qkv.as<Bf16>(), qkv.row_stride, a.positions.as<int32_t>(),
                                     a.cache_rows.as<int32_t>(), a.table.as<float>(), a.q.as<Bf16>(), a.q.row_stride,
                                     a.k_cache.as<Bf16>(), a.v_cache.as<Bf16>(), a.k_cache.row_stride, items(a.q, 16),
                                     items(a.k_cache, 16), items(a.v_cache, 8), half);
    return;
  }
  const int q_pairs = a.q.defined() ? static_cast<int>(a.q.cols() / 2) : 0;
  with_float_type(qkv.dtype, [&]<class T>(T) {
    launch<rope_cache_kernel<T>>({.grid = static_cast<unsigned>(qkv.rows()), .block = kThreads, .stream = stream},
                                 qkv.as<T>(), qkv.row_stride, a.positions.as<int32_t>(), a.cache_rows.as<int32_t>(),
                                 a.table.as<float>(), a.q.as<T>(), a.q.row_stride, a.k_cache.as<T>(), a.v_cache.as<T>(),
                                 a.k_cache.row_stride, q_pairs, static_cast<int>(a.k_cache.cols() / 2),
                                 static_cast<int>(a.table.cols() / 2));
  });
}

}  // namespace tendon::gpu
