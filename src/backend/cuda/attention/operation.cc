#include "backend/cuda/attention/operation.h"

#include <array>
#include <numbers>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/hopper/tensor_maps.h"
#include "backend/gpu/aligned_rows.h"
#include "backend/gpu/kernels.h"
#include "base/check.h"

namespace tendon::gpu::attention {
namespace {

using hopper::TensorMaps;

constexpr int64_t kLeastRows = 512;  // of queries × heads on one K/V head; fewer leave the card empty

int64_t head_cols(const Attention& a) { return a.q.cols() / a.heads; }
int64_t group_of(const Attention& a) { return a.heads / a.kv_heads; }

// What both operations have: where codes are made, with factors, else without.
struct Attended {
  Attention attention;
  Tensor factors, out;
};
Attended attended(const Op& op) {
  if (const auto* a = std::get_if<AttentionToCodes>(&op.args)) return {a->attention, a->factors, a->out};
  const auto& a = std::get<Attention>(op.args);
  return {a, {}, a.out};
}

bool fits_copies(const Attended& all) {
  constexpr int64_t kMost = int64_t{1} << 30;  // coordinates have 32 bits
  const auto fits = [](const Tensor& t) {
    return aligned_rows(t) && t.row_stride < kMost && t.value_offset % 8 == 0 && t.rows() > 0 && t.rows() < kMost;
  };
  const Attention& a = all.attention;
  const bool out_fits = all.factors.defined()
                            ? aligned_code_rows(all.out) && all.out.row_stride < kMost && all.out.value_offset % 16 == 0
                            : fits(all.out);
  return fits(a.q) && fits(a.k) && fits(a.v) && out_fits && is_aligned(all.factors.data) && a.scale > 0;
}

bool can_stream(const Op& op) {
  const Attended all = attended(op);
  const Attention& a = all.attention;
  return !(a.out.defined() && takes_attention_cluster(a)) && fits_copies(all) && head_cols(a) == kStreamCols &&
         kTileRows % group_of(a) == 0 && a.q.shape[1] * group_of(a) >= kLeastRows && a.q.shape[0] * a.kv_heads < 65536;
}
bool can_hold(const Op& op) {
  const Attended all = attended(op);
  const Attention& a = all.attention;
  return fits_copies(all) && head_cols(a) > kWideCols && head_cols(a) <= kWideCols + kRestCols &&
         head_cols(a) % 8 == 0 && a.heads == a.kv_heads && a.heads < 65536 && a.q.shape[0] < 65536 &&
         a.k.shape[1] <= kHeldKeys && !a.key_len.defined() && !a.key_mask.defined();
}

TensorMaps tensor_maps() {
  const std::optional<TensorMaps> maps = TensorMaps::open();
  TENDON_CHECK(maps.has_value(), "the driver no longer describes tensors to the card");
  return *maps;
}

// Boxes of 64 rows: so many heads of a token, and the tokens after it.
CUtensorMap describe_held(const TensorMaps& maps, const Tensor& t, int64_t cols, int box_cols) {
  const auto width = static_cast<uint64_t>(cols);
  const auto tokens = static_cast<uint64_t>(t.shape[1]);
  const uint64_t row_bytes = static_cast<uint64_t>(t.row_stride) * sizeof(Bf16);
  const std::array<uint64_t, 4> shape{width, static_cast<uint64_t>(t.cols() / cols), tokens,
                                      static_cast<uint64_t>(t.shape[0])};
  const std::array<uint64_t, 3> strides_bytes{width * sizeof(Bf16), row_bytes, tokens * row_bytes};
  const std::array<uint32_t, 4> box{static_cast<uint32_t>(box_cols), 1, kTileRows, 1};
  return maps.describe(t.data, shape, strides_bytes, box,
                       box_cols == kWideCols ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_32B);
}
Maps describe_held(const TensorMaps& maps, const Attention& a, int box_cols) {
  const auto each = [&](const Tensor& t) { return describe_held(maps, t, head_cols(a), box_cols); };
  return {.q = each(a.q), .k = each(a.k), .v = each(a.v), .out = a.out.defined() ? each(a.out) : CUtensorMap{}};
}

// Codes count in pairs.
CUtensorMap describe_streamed(const TensorMaps& maps, const Tensor& t, int64_t box_heads, int box_blocks) {
  const uint64_t size = dtype_bytes(t.dtype);
  const auto tokens = static_cast<uint64_t>(t.shape[1]);
  const uint64_t row_bytes = static_cast<uint64_t>(t.row_stride) * size;
  const uint64_t box_pairs = kWideCols * size / sizeof(Bf16);
  const std::array<uint64_t, 5> shape{box_pairs, static_cast<uint64_t>(t.cols() / kStreamCols), tokens,
                                      kStreamCols / kWideCols, static_cast<uint64_t>(t.shape[0])};
  const std::array<uint64_t, 4> strides_bytes{kStreamCols * size, row_bytes, kWideCols * size, tokens * row_bytes};
  const std::array<uint32_t, 5> box{static_cast<uint32_t>(box_pairs), static_cast<uint32_t>(box_heads),
                                    static_cast<uint32_t>(kTileRows / box_heads), static_cast<uint32_t>(box_blocks), 1};
  return maps.describe(t.data, shape, strides_bytes, box,
                       is_scaled(t.dtype) ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B);
}

Args args_of(const Attended& all) {
  const Attention& a = all.attention;
  return {.visible = visible_keys(a),
          .queries = static_cast<int>(a.q.shape[1]),
          .kv_heads = a.kv_heads,
          .group = static_cast<int>(group_of(a)),
          .scale = a.scale * std::numbers::log2e_v<float>,
          .factors = all.factors.as<float>(),
          .codes = all.out.data,
          .codes_stride = all.out.row_stride,
          .code_scales = all.out.scales,
          .head_cols = static_cast<int>(head_cols(a))};
}

Launch prepare_stream(const Op& op, const GpuContext&) {
  const Attended all = attended(op);
  const Attention& a = all.attention;
  const TensorMaps maps = tensor_maps();
  constexpr int kBlocks = kStreamCols / kWideCols;
  const Maps described{.q = describe_streamed(maps, a.q, group_of(a), kBlocks),
                       .k = describe_streamed(maps, a.k, 1, kBlocks),
                       .v = describe_streamed(maps, a.v, 1, kBlocks),
                       .out = describe_streamed(maps, all.out, group_of(a), kBlocks / 2)};
  return [described, args = args_of(all), type = all.out.dtype, batch = static_cast<int>(a.q.shape[0])](Stream stream) {
    launch_streamed_keys(described, args, type, batch, stream);
  };
}
Launch prepare_hold(const Op& op, const GpuContext&) {
  const Attended all = attended(op);
  const Attention& a = all.attention;
  const TensorMaps maps = tensor_maps();
  return [wide = describe_held(maps, a, kWideCols), rest = describe_held(maps, a, kRestCols), args = args_of(all),
          type = all.out.dtype, batch = static_cast<int>(a.q.shape[0])](Stream stream) {
    launch_held_keys(wide, rest, args, type, batch, stream);
  };
}

size_t no_workspace(const Op&) { return 0; }

}  // namespace

std::vector<GpuOp> attention_rows(Runtime& runtime) {
  if (runtime.architecture() != 90) return {};
  runtime.make_current();
  if (!TensorMaps::open()) return {};
  std::vector<GpuOp> rows;
  for (const char* name : {Attention::kName, AttentionToCodes::kName}) {
    rows.push_back({name, "cuda.attention (wgmma, streamed keys)", can_stream, no_workspace, prepare_stream});
    rows.push_back({name, "cuda.attention (wgmma, held keys)", can_hold, no_workspace, prepare_hold});
  }
  return rows;
}

}  // namespace tendon::gpu::attention
