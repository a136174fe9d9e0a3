// Operations that copy rows: add_rows, scatter_rows, gather_rows, gather_prefix, concat_row, cast, euler_step,
// bias_activation; and the copies of a call's inputs and results. Formulas and shapes: ops/basic_ops.h. All are limited
// by their bytes.
#include "backend/gpu/aligned_rows.h"
#include "backend/gpu/elementwise.cuh"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

template <class X>
struct RowsPlusTable {
  Matrix<X> x;
  Matrix<float> table;
  int64_t period;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const {
    return x.at(row, col) + table.at(row % period, col);
  }
};

template <class X>
struct GatheredRow {
  Matrix<X> x;
  const int32_t* rows;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const { return x.at(rows[row], col); }
};

template <class X, class R>
struct RowThenTail {
  Matrix<X> x;
  Matrix<R> tail;
  int64_t left;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const {
    return col < left ? x.at(row, col) : tail.at(0, col - left);
  }
};

template <class X>
struct Same {
  Matrix<X> x;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const { return x.at(row, col); }
};

template <class Code>
struct Widened {
  Matrix<Code> x;
  const float* scales;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const { return x.at(row, col) * scales[row]; }
};

struct Euler {
  Matrix<float> x, v;
  float dt;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const {
    return __fadd_rn(x.at(row, col), __fmul_rn(dt, v.at(row, col)));
  }
};

template <class X, class E>
struct PrefixRow {
  Matrix<X> features;
  Matrix<E> embedding;
  const int32_t* sources;
  float scale;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const {
    const int64_t source = sources[row];
    return source >= 0 ? features.at(source, col) : embedding.at(-1 - source, col) * scale;
  }
};

// The same for rows of octets, a block a row.
TENDON_KERNEL void __launch_bounds__(256)
    gather_prefix_octets_kernel(const Bf16* features, int64_t features_stride, const Bf16* embedding,
                                int64_t embedding_stride, const int32_t* sources, float scale, Bf16* out,
                                int64_t out_stride, int cols) {
  launch_dependents();
  wait_for_producers();
  const int64_t source = sources[blockIdx.x];
  for (int col = static_cast<int>(threadIdx.x) * 8; col < cols; col += 256 * 8) {
    Vec<Bf16> row;
    if (source >= 0) {
      row = load_vec(features + source * features_stride + col);
    } else {
      row = load_vec(embedding + (-1 - source) * embedding_stride + col);
#pragma unroll
      for (int i = 0; i < 8; ++i) row.v[i] = narrow<Bf16>(widen(row.v[i]) * scale);
    }
    store_vec(out + blockIdx.x * out_stride + col, row);
  }
}

struct BiasActivation {
  Matrix<float> sums;
  const float* bias;  // null without
  Activation activation;
  TENDON_DEVICE float operator()(int64_t row, int64_t col) const {
    const float value = sums.at(row, col) + (bias == nullptr ? 0.0F : bias[col]);
    if (activation == Activation::kGeluTanh) return gelu_tanh(value);
    return activation == Activation::kSilu ? silu(value) : value;
  }
};

constexpr int kCopyThreads = 256;

TENDON_KERNEL void __launch_bounds__(kCopyThreads) copy_octets_kernel(const Octet* from, Octet* to, int64_t count) {
  launch_dependents();
  wait_for_producers();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (at < count) store_octet(to + at, load_octet(from + at));
}

template <class T>
TENDON_KERNEL void scatter_rows_kernel(const T* x, int64_t x_stride, const int32_t* rows, T* out, int64_t out_stride,
                                       int64_t cols) {
  const int64_t target = rows[blockIdx.x];
  if (target < 0) return;
  for (int64_t col = threadIdx.x; col < cols; col += blockDim.x) {
    out[target * out_stride + col] = x[blockIdx.x * x_stride + col];
  }
}

}  // namespace

void launch_add_rows(const AddRows& a, Stream stream) {
  with_float_type(a.x.dtype, [&]<class X>(X) {
    launch_elementwise(a.out, stream, RowsPlusTable<X>{Matrix<X>(a.x), Matrix<float>(a.table), a.table.rows()});
  });
}

void launch_gather_rows(const GatherRows& a, Stream stream) {
  with_float_type(a.x.dtype, [&]<class X>(X) {
    launch_elementwise(a.out, stream, GatheredRow<X>{Matrix<X>(a.x), a.rows.as<int32_t>()});
  });
}

void launch_concat_row(const ConcatRow& a, Stream stream) {
  with_float_type(a.x.dtype, [&]<class X>(X) {
    with_float_type(a.row.dtype, [&]<class R>(R) {
      launch_elementwise(a.out, stream, RowThenTail<X, R>{Matrix<X>(a.x), Matrix<R>(a.row), a.x.cols()});
    });
  });
}

void launch_cast(const Cast& a, Stream stream) {
  if (is_scaled(a.out.dtype)) {
    launch_quantize_rows(a, stream);
    return;
  }
  if (a.x.dtype == DType::kE4m3) {
    launch_elementwise(a.out, stream, Widened<E4m3>{Matrix<E4m3>(a.x), a.x.scales});
    return;
  }
  if (a.x.dtype == DType::kI8) {
    launch_elementwise(a.out, stream, Widened<int8_t>{Matrix<int8_t>(a.x), a.x.scales});
    return;
  }
  with_float_type(a.x.dtype, [&]<class X>(X) { launch_elementwise(a.out, stream, Same<X>{Matrix<X>(a.x)}); });
}

void launch_euler_step(const EulerStep& a, Stream stream) {
  launch_elementwise(a.out, stream, Euler{Matrix<float>(a.x), Matrix<float>(a.v), a.dt});
}

void launch_gather_prefix(const GatherPrefix& a, Stream stream) {
  if (rows_of_octets(a.features) && rows_of_octets(a.embedding) && rows_of_octets(a.out) && a.out.rows() > 0) {
    launch<gather_prefix_octets_kernel>(
        {.grid = static_cast<unsigned>(a.out.rows()), .block = 256, .stream = stream, .overlaps = true},
        a.features.as<Bf16>(), a.features.row_stride, a.embedding.as<Bf16>(), a.embedding.row_stride,
        a.sources.as<int32_t>(), a.scale, a.out.as<Bf16>(), a.out.row_stride, static_cast<int>(a.out.cols()));
    return;
  }
  with_float_type(a.features.dtype, [&]<class X>(X) {
    with_float_type(a.embedding.dtype, [&]<class E>(E) {
      launch_elementwise(
          a.out, stream,
          PrefixRow<X, E>{Matrix<X>(a.features), Matrix<E>(a.embedding), a.sources.as<int32_t>(), a.scale});
    });
  });
}

void launch_copy_octets(void* to, const void* from, size_t bytes, Stream stream) {
  const auto count = static_cast<int64_t>(bytes / sizeof(Octet));
  launch<copy_octets_kernel>({.grid = static_cast<unsigned>(ceil_div(count, kCopyThreads)),
                              .block = kCopyThreads,
                              .stream = stream,
                              .overlaps = true},
                             static_cast<const Octet*>(from), static_cast<Octet*>(to), count);
}

void launch_bias_activation(const Tensor& sums, const Tensor& bias, Activation activation, const Tensor& out,
                            Stream stream) {
  launch_elementwise(out, stream, BiasActivation{Matrix<float>(sums), bias.as<float>(), activation});
}

void launch_scatter_rows(const ScatterRows& a, Stream stream) {
  if (a.x.elements() == 0) return;
  with_float_type(a.x.dtype, [&]<class T>(T) {
    launch<scatter_rows_kernel<T>>({.grid = static_cast<unsigned>(a.x.rows()), .block = 256, .stream = stream},
                                   a.x.as<T>(), a.x.row_stride, a.rows.as<int32_t>(), a.out.as<T>(), a.out.row_stride,
                                   a.x.cols());
  });
}

}  // namespace tendon::gpu
