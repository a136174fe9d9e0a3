// linear: out = act(x·wᵀ + bias) for up to 64 rows and f32 weights (the projections in and out of the action expert).
//   x (M, K) f32 or bf16, w (N, K), bias (N) f32, out (M, N) f32 or bf16; K a multiple of 4.
// A block owns eight outputs and shares the depth out over its waves: four values a lane. The weights are loaded before
// the kernel waits for the one in front of it. f32 sums in fixed order: repeats give the same bytes. Bytes moved: w
// once.
#include "backend/gpu/device/prelude.cuh"
#include "backend/gpu/few_rows.h"
#include "backend/gpu/gpu_rt.h"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

constexpr int kColumns = 8;
constexpr int kThreads = 256;
constexpr int kWaves = kThreads / kWarpSize;
constexpr int kDepth = kThreads * 4;  // of one round

struct Args {
  const void* x;
  const float *w, *bias;
  void* out;
  int64_t x_stride, w_stride, out_stride;
  int rows, cols, depth, rows_per_block;
  Activation activation;
};

constexpr int kShare = kWarpSize / 8;  // lanes that end up with the same value

// Sums eight values over the wave: lane l gets the total of value l / kShare.
TENDON_DEVICE float sum_eight(float (&v)[8]) {
#pragma unroll
  for (int width = 4; width > 0; width /= 2) {  // halves the number of values, and of lanes that hold each
    const bool upper = (lane() & (kShare * width)) != 0;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float mine = upper ? v[i + width] : v[i];
      const float other = upper ? v[i] : v[i + width];
      v[i] = mine + shuffle_xor(other, kShare * width);
    }
  }
#pragma unroll
  for (int mask = 1; mask < kShare; mask *= 2) v[0] += shuffle_xor(v[0], mask);
  return v[0];
}

template <class X, class O>
TENDON_KERNEL void __launch_bounds__(kThreads) few_rows_linear_kernel(Args a) {
  TENDON_SHARED(float, sums, kFewRowsMax* kWaves* kColumns);
  const int first_col = static_cast<int>(blockIdx.x) * kColumns;
  const int first_row = static_cast<int>(blockIdx.y) * a.rows_per_block;
  const int end_row = first_row + a.rows_per_block < a.rows ? first_row + a.rows_per_block : a.rows;
  const int at = static_cast<int>(threadIdx.x) * 4;

  Vec<float> w[kColumns];
  const auto load_weights = [&](int depth) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const bool valid = depth < a.depth && first_col + i < a.cols;
      w[i] = valid ? load_vec(a.w + (first_col + i) * a.w_stride + depth) : Vec<float>{};
    }
  };
  load_weights(at);
  launch_dependents();
  wait_for_producers();

  for (int depth = at, round = 0; round * kDepth < a.depth; depth += kDepth, ++round) {
    if (round > 0) load_weights(depth);
    for (int row = first_row; row < end_row; ++row) {
      Vec<float> x{};
      if (depth < a.depth) x = load_fresh_four(static_cast<const X*>(a.x) + row * a.x_stride + depth);
      float part[kColumns];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        part[i] = x.v[0] * w[i].v[0] + x.v[1] * w[i].v[1] + x.v[2] * w[i].v[2] + x.v[3] * w[i].v[3];
      }
      const float total = sum_eight(part);
      float& sum = sums[((row - first_row) * kWaves + wave()) * kColumns + lane() / kShare];
      if (lane() % kShare == 0) sum = round == 0 ? total : sum + total;
    }
  }
  block_sync();
  for (int i = static_cast<int>(threadIdx.x); i < (end_row - first_row) * kColumns; i += kThreads) {
    const int row = i / kColumns;
    const int col = first_col + i % kColumns;
    if (col >= a.cols) continue;
    float value = 0;
#pragma unroll
    for (int s = 0; s < kWaves; ++s) value += sums[(row * kWaves + s) * kColumns + i % kColumns];
    if (a.bias != nullptr) value += a.bias[col];
    if (a.activation == Activation::kSilu) value = silu(value);
    if (a.activation == Activation::kGeluTanh) value = gelu_tanh(value);
    static_cast<O*>(a.out)[(first_row + row) * a.out_stride + col] = narrow<O>(value);
  }
}

}  // namespace

bool takes_few_rows(const Linear& a) {
  const auto aligned = [](const Tensor& t) {
    const size_t bytes = 4 * dtype_bytes(t.dtype);
    return t.row_stride % 4 == 0 && reinterpret_cast<uintptr_t>(t.data) % bytes == 0;
  };
  const auto is_float = [](const Tensor& t) { return t.dtype == DType::kF32 || t.dtype == DType::kBf16; };
  return a.x.rows() > 0 && a.x.rows() <= kFewRowsMax && a.w.dtype == DType::kF32 && is_constant(a.w) &&
         is_constant(a.bias) && a.x.cols() > 0 && a.w.rows() > 0 && a.x.cols() % 4 == 0 && is_float(a.x) &&
         is_float(a.out) && aligned(a.x) && aligned(a.w);
}

void launch_few_rows_linear(const Linear& a, Stream stream) {
  const auto rows = static_cast<int>(a.x.rows());
  const Args args{.x = a.x.data,
                  .w = a.w.as<float>(),
                  .bias = a.bias.as<float>(),
                  .out = a.out.data,
                  .x_stride = a.x.row_stride,
                  .w_stride = a.w.row_stride,
                  .out_stride = a.out.row_stride,
                  .rows = rows,
                  .cols = static_cast<int>(a.w.rows()),
                  .depth = static_cast<int>(a.x.cols()),
                  // few outputs: the rows are spread over the card as well
                  .rows_per_block = a.w.rows() >= 512 ? rows : 1,
                  .activation = a.activation};
  const dim3 grid(static_cast<unsigned>(ceil_div(args.cols, kColumns)),
                  static_cast<unsigned>(ceil_div(rows, args.rows_per_block)));
  with_float_type(a.x.dtype, [&]<class X>(X) {
    with_float_type(a.out.dtype, [&]<class O>(O) {
      launch<few_rows_linear_kernel<X, O>>({.grid = grid, .block = dim3(kThreads), .stream = stream, .overlaps = true},
                                           args);
    });
  });
}

}  // namespace tendon::gpu
