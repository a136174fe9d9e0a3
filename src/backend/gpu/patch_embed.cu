// patch_embed of bytes as a product of bf16 operands: what its operands are made by. With b = byte - 128,
//   pixel = byte · 2/255 - 1 = b · 2/255 + 1/255,  so  w · pixel + bias = (2/255 · w) · b + (bias + Σ w / 255).
// b is exact in bf16. Three numbers of bf16 hold all bits of an f32 weight, so the product has three times the depth:
//   rows    (M, depth) bf16: b of a patch, three times
//   weights (N, depth) bf16: upper, middle and lower parts;   bias (N) f32
// depth = 3 · 3·P·P, rounded up to eight; what is more is zeros. A patch goes as pictures lie in memory, (y, x,
// channel); the weights that are given go (channel, y, x). Bytes moved: pictures once, rows once.
#include "backend/gpu/device/prelude.cuh"
#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kParts = 3;

// One thread eight columns of a row.
TENDON_KERNEL void __launch_bounds__(kThreads)
    patch_rows_kernel(const uint8_t* images, Bf16* rows, int count, int depth, int patch, int across, int per_image) {
  launch_dependents();
  wait_for_producers();
  const int octets = depth / 8;
  const int item = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int row = item / octets;
  if (row >= count) return;
  const int line_bytes = 3 * patch;  // of a patch
  const int values = line_bytes * patch;
  const int64_t pitch = int64_t{across} * line_bytes;  // of a picture
  const int token = row % per_image;
  const int64_t first_line = int64_t{row / per_image} * (per_image / across) * patch + int64_t{token / across} * patch;
  const uint8_t* const corner = images + first_line * pitch + int64_t{token % across} * line_bytes;
  const int first_col = item % octets * 8;
  const int value = first_col % values;
  int line = value / line_bytes;
  int at = value % line_bytes;
  Octet out;
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    float number[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool holds = first_col + 2 * pair + i < kParts * values;
      number[i] = holds ? static_cast<float>(corner[line * pitch + at]) - 128.0F : 0.0F;
      if (++at == line_bytes) at = 0, ++line;
      if (line == patch) line = 0;
    }
    out.pair[pair] = pack_bf16(number[0], number[1]);
  }
  store_octet(rows + static_cast<int64_t>(row) * depth + first_col, out);
}

// A block a row of the weights.
TENDON_KERNEL void __launch_bounds__(kThreads)
    patch_weights_kernel(const float* w, int64_t stride, const float* bias, int patch, int depth, Bf16* parts,
                         float* joint_bias) {
  TENDON_SHARED(float, shared, kThreads / kWarpSize);
  const int values = 3 * patch * patch;
  const float* const row = w + blockIdx.x * stride;
  Bf16* const to = parts + static_cast<int64_t>(blockIdx.x) * depth;
  float sum = 0;
  for (int col = static_cast<int>(threadIdx.x); col < depth; col += kThreads) {
    const int value = col % values;
    const float given = col < kParts * values ? row[value % 3 * patch * patch + value / 3] : 0.0F;
    if (col < values) sum += given;
    float rest = __fmul_rn(given, 2.0F / 255.0F);
    for (int part = col / values; part > 0; --part) rest = __fsub_rn(rest, rounded<Bf16>(rest));
    to[col] = narrow<Bf16>(rest);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) joint_bias[blockIdx.x] = bias[blockIdx.x] + __fdiv_rn(sum, 255.0F);
}

}  // namespace

int64_t patch_depth(const PatchEmbed& a) { return (kParts * a.w.cols() + 7) / 8 * 8; }

void launch_patch_rows(const PatchEmbed& a, const Tensor& rows, Stream stream) {
  const int64_t items = rows.elements() / 8;
  if (items == 0) return;
  launch<patch_rows_kernel>(
      {.grid = static_cast<unsigned>(ceil_div(items, kThreads)), .block = kThreads, .stream = stream, .overlaps = true},
      a.images.as<uint8_t>(), rows.as<Bf16>(), static_cast<int>(rows.rows()), static_cast<int>(rows.cols()),
      static_cast<int>(a.patch), static_cast<int>(a.images.shape[2] / a.patch), static_cast<int>(a.positions.rows()));
}

void launch_patch_weights(const PatchEmbed& a, const Tensor& weights, const Tensor& bias, Stream stream) {
  launch<patch_weights_kernel>({.grid = static_cast<unsigned>(a.w.rows()), .block = kThreads, .stream = stream},
                               a.w.as<float>(), a.w.row_stride, a.bias.as<float>(), static_cast<int>(a.patch),
                               static_cast<int>(weights.cols()), weights.as<Bf16>(), bias.as<float>());
}

}  // namespace tendon::gpu
