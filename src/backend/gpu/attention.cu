// attention: softmax(scale · q·kᵀ) · v over the valid keys, multi-query or multi-head; formula in ops/basic_ops.h.
//
// The queries of the heads that share a K/V head are one matrix of T·group rows. A block takes 64 of those rows and a
// range of keys; products run on tensor cores (attention_mma.cuh, attention_mfma.cuh), the softmax is the running one
// in f32. Few rows (the action expert) are spread over the card by splitting the keys; a second kernel joins the parts.
// Head widths up to 256. f32 inputs take a plain kernel, one wave a query row: the checking path.
#include "backend/gpu/aligned_rows.h"
#include "backend/gpu/device/prelude.cuh"
#include "backend/gpu/kernels.h"
#include "backend/gpu/tiles.cuh"

namespace tendon::gpu {
namespace {

using namespace attention;

constexpr int kMaxSplits = 32;

// Joins the parts of one query row: a block a row, a thread a column.
TENDON_KERNEL void attention_join_kernel(Args a) {
  const int row = static_cast<int>(blockIdx.x);
  const int b = static_cast<int>(blockIdx.y) / a.kv_heads;
  const int kv = static_cast<int>(blockIdx.y) % a.kv_heads;
  const int pitch = a.width + 2;
  const float* const parts = a.parts + (static_cast<int64_t>(blockIdx.y) * a.rows() + row) * a.splits * pitch;
  float maximum = -INFINITY;
  for (int s = 0; s < a.splits; ++s) maximum = fmaxf(maximum, parts[s * pitch + a.width]);
  float denominator = 0;
  float sum = 0;
  const int col = static_cast<int>(threadIdx.x);
  for (int s = 0; s < a.splits; ++s) {
    const float part_max = parts[s * pitch + a.width];
    if (part_max == -INFINITY) continue;
    const float weight = __expf(part_max - maximum);
    denominator += weight * parts[s * pitch + a.width + 1];
    if (col < a.width) sum += weight * parts[s * pitch + col];
  }
  if (col < a.width) {
    static_cast<Bf16*>(a.out)[a.offset(b, kv, row, a.out_stride) + col] =
        narrow<Bf16>(denominator > 0 ? sum / denominator : 0.0F);
  }
}

// One wave a query row and head, f32 or bf16 in and out; two passes over the keys. Any head width.
template <class T>
TENDON_KERNEL void attention_plain_kernel(Args a) {
  TENDON_DYNAMIC_SHARED(memory);
  float* const logits = reinterpret_cast<float*>(memory);  // (capacity)
  const int t = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int b = static_cast<int>(blockIdx.z);
  const int kv = head / a.group();
  const int64_t row = static_cast<int64_t>(b) * a.queries + t;
  const T* const q = static_cast<const T*>(a.q) + row * a.q_stride + head * a.width;
  const int64_t base = static_cast<int64_t>(b) * a.capacity * a.k_stride + kv * a.width;
  const T* const k = static_cast<const T*>(a.k) + base;
  const T* const v = static_cast<const T*>(a.v) + base;
  const int keys = a.visible.of(b, t);
  float maximum = -INFINITY;
  for (int key = 0; key < keys; ++key) {
    float dot = 0;
    for (int d = lane(); d < a.width; d += kWarpSize) dot += widen(q[d]) * widen(k[key * a.k_stride + d]);
    dot = a.visible.masked(b, key) ? -INFINITY : wave_sum(dot) * a.scale;
    if (lane() == 0) logits[key] = dot;
    maximum = fmaxf(maximum, dot);
  }
  wave_sync();
  float denominator = 0;
  for (int key = lane(); key < keys; key += kWarpSize) {
    const float weight = logits[key] == -INFINITY ? 0.0F : expf(logits[key] - maximum);
    denominator += weight;
    logits[key] = weight;
  }
  denominator = wave_sum(denominator);
  wave_sync();
  T* const out = static_cast<T*>(a.out) + row * a.out_stride + head * a.width;
  for (int d = lane(); d < a.width; d += kWarpSize) {
    float sum = 0;
    for (int key = 0; key < keys; ++key) {  // a key that is masked may hold anything
      if (logits[key] > 0) sum += logits[key] * widen(v[key * a.k_stride + d]);
    }
    out[d] = narrow<T>(denominator > 0 ? sum / denominator : 0.0F);
  }
}

bool takes_tensor_cores(const Attention& a) {
  const int64_t width = a.q.cols() / a.heads;
  return width % 8 == 0 && width <= 256 && aligned_rows(a.q) && aligned_rows(a.k) && aligned_rows(a.v) &&
         aligned_rows(a.out);
}

int64_t group_rows(const Attention& a) { return a.q.shape[1] * (a.heads / a.kv_heads); }

// Enough blocks for the card when there are few query rows.
int splits_of(const Attention& a) {
  const int64_t blocks = a.q.shape[0] * a.kv_heads * ceil_div(group_rows(a), kRows);
  const int64_t tiles = ceil_div(a.k.shape[1], kKeys);
  int64_t splits = 1;
  while (splits < kMaxSplits && 2 * splits <= tiles && blocks * splits < 64) splits *= 2;
  return static_cast<int>(splits);
}

template <int kWidth>
void launch_tiles(const Args& args, dim3 grid, Stream stream) {
  launch<attention_kernel<kWidth>>(
      {.grid = grid, .block = kThreads, .shared_bytes = attention::tile_shared_bytes<kWidth>(), .stream = stream},
      args);
}

}  // namespace

size_t attention_workspace_bytes(const Attention& a) {
  const int splits = splits_of(a);
  if (splits == 1) return 0;
  const int64_t width = a.q.cols() / a.heads;
  return static_cast<size_t>(a.q.shape[0] * a.kv_heads * group_rows(a) * splits * (width + 2)) * sizeof(float);
}

namespace {

Args args_of(const Attention& a, void* workspace) {
  return {.q = a.q.data,
          .k = a.k.data,
          .v = a.v.data,
          .out = a.out.data,
          .visible = visible_keys(a),
          .parts = static_cast<float*>(workspace),
          .q_stride = a.q.row_stride,
          .k_stride = a.k.row_stride,
          .out_stride = a.out.row_stride,
          .batch = static_cast<int>(a.q.shape[0]),
          .queries = static_cast<int>(a.q.shape[1]),
          .capacity = static_cast<int>(a.k.shape[1]),
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .width = static_cast<int>(a.q.cols() / a.heads),
          .splits = splits_of(a),
          .scale = a.scale};
}

}  // namespace

void launch_plain_attention(const Attention& a, Stream stream) {
  if (a.q.elements() == 0) return;
  const Args args = args_of(a, nullptr);
  with_float_type(a.q.dtype, [&]<class T>(T) {
    const dim3 grid(static_cast<unsigned>(args.queries), static_cast<unsigned>(a.heads),
                    static_cast<unsigned>(args.batch));
    launch<attention_plain_kernel<T>>({.grid = grid,
                                       .block = kWarpSize,
                                       .shared_bytes = static_cast<size_t>(args.capacity) * sizeof(float),
                                       .stream = stream},
                                      args);
  });
}

void launch_attention(const Attention& a, void* workspace, Stream stream) {
  if (a.q.elements() == 0) return;
  if (!takes_tensor_cores(a)) return launch_plain_attention(a, stream);
  const Args args = args_of(a, workspace);
  const auto groups = static_cast<unsigned>(args.batch * args.kv_heads);
  const dim3 grid(static_cast<unsigned>(ceil_div(group_rows(a), kRows)), static_cast<unsigned>(args.splits), groups);
  if (args.width <= 16) {
    launch_tiles<16>(args, grid, stream);
  } else if (args.width <= 80) {
    launch_tiles<80>(args, grid, stream);
  } else if (args.width <= 128) {
    launch_tiles<128>(args, grid, stream);
  } else {
    launch_tiles<256>(args, grid, stream);
  }
  if (args.splits > 1) {
    const unsigned threads = static_cast<unsigned>(ceil_div(args.width, kWarpSize)) * kWarpSize;
    launch<attention_join_kernel>(
        {.grid = {static_cast<unsigned>(group_rows(a)), groups}, .block = threads, .stream = stream}, args);
  }
}

}  // namespace tendon::gpu
