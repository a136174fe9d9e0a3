#include "backend/gpu/op_table.h"

#include <algorithm>
#include <array>
#include <optional>

#include "backend/gpu/kernels.h"
#include "backend/gpu/op_products.h"
#include "base/check.h"

namespace tendon::gpu {
namespace {

bool is_float(const Tensor& t) { return !t.defined() || t.dtype == DType::kF32 || t.dtype == DType::kBf16; }

// Unbound while the plan asks what is supported: planned buffers count as fitting.
bool weights_stack(std::initializer_list<Tensor> parts) {
  return std::ranges::all_of(parts, [](const Tensor& t) { return !t.defined() || t.data != nullptr; }) &&
         stacked(parts).has_value();
}

Launch prepare_product(const Product& product, const Scratch& used, const GpuContext& context) {
  return context.products.prepare(product, {.scratch = used.rest(), .allocate = context.allocate});
}

// With the codes of its result, by the product's own kernel where that can; `type`: what they are made of.
Launch prepare_whole(const Product& product, DType type, Scratch& scratch, const GpuContext& context) {
  if (!product.factors.defined()) return prepare_product(product, scratch, context);
  const Product plain = without_codes(product, type, scratch);
  if (Launch launch = context.products.prepare_codes(product, plain)) return launch;
  const Cast cast{.x = plain.out, .factors = product.factors, .out = product.out, .unit_scales = true};
  return [made = prepare_product(plain, scratch, context), cast](Stream stream) {
    made(stream);
    launch_cast(cast, stream);
  };
}

size_t no_workspace(const Op&) { return 0; }

// --- linear

// w may have codes with scales: then the rows get them first.
bool same_types(const Tensor& x, const Tensor& w, const Tensor& out) {
  return is_float(out) && x.dtype == out.dtype && (w.dtype == out.dtype || is_scaled(w.dtype));
}
// With factors, codes are made of a result in x's type.
bool same_types(const Tensor& x, const Tensor& w, const Tensor& out, const Tensor& factors) {
  return same_types(x, w, factors.defined() ? x : out);
}

Product linear_product(const Op& op) {
  const auto& a = std::get<Linear>(op.args);
  return {.x = a.x, .w = a.w, .bias = a.bias, .out = a.out, .activation = a.activation};
}
bool can_linear(const Op& op) {
  const auto& a = std::get<Linear>(op.args);
  const bool types = is_scaled(a.w.dtype) ? a.x.dtype == a.w.dtype : is_float(a.x) && is_float(a.w);
  return a.x.cols() > 0 && types && is_float(a.out);
}

template <class Args>
bool can_few_rows(const Op& op) {
  return takes_few_rows(std::get<Args>(op.args));
}
bool can_attention_cluster(const Op& op) { return takes_attention_cluster(std::get<Attention>(op.args)); }

bool can_linear_residual(const Op& op) {
  const auto& a = std::get<LinearResidual>(op.args);
  const bool types = is_float(a.x) ? is_float(a.w) || is_scaled(a.w.dtype) : a.x.dtype == a.w.dtype;
  return a.x.cols() > 0 && types && is_float(a.out) && a.residual.dtype == a.out.dtype;
}

Launch cast_launch(const Tensor& x, const Tensor& rows) {
  if (rows.dtype == x.dtype) return [](Stream) {};
  return [cast = Cast{.x = x, .out = rows}](Stream stream) { launch_cast(cast, stream); };
}

Product linear_residual_shape(const Op& op) {
  const auto& a = std::get<LinearResidual>(op.args);
  Scratch scratch(nullptr);
  return product_in(a, operand_rows(a.x, a.w, scratch));
}
size_t linear_residual_workspace(const Op& op) {
  const auto& a = std::get<LinearResidual>(op.args);
  Scratch scratch(nullptr);
  const Product product = product_in(a, operand_rows(a.x, a.w, scratch));
  return scratch.used() + product_scratch_bytes(product);
}
Launch prepare_linear_residual(const Op& op, const GpuContext& context) {
  const auto& a = std::get<LinearResidual>(op.args);
  Scratch scratch(context.workspace);
  const Tensor rows = operand_rows(a.x, a.w, scratch);
  return
      [cast = cast_launch(a.x, rows), product = prepare_product(product_in(a, rows), scratch, context)](Stream stream) {
        cast(stream);
        product(stream);
      };
}

size_t linear_workspace(const Op& op) { return product_scratch_bytes(linear_product(op)); }
Launch prepare_linear(const Op& op, const GpuContext& context) {
  return prepare_product(linear_product(op), Scratch(context.workspace), context);
}

// --- patch_embed of bytes, as a product on tensor cores

bool can_patch_product(const Op& op) {
  const auto& a = std::get<PatchEmbed>(op.args);
  const bool constant = a.w.value < 0 && a.bias.value < 0;  // the product's operands are made of them once
  return constant && a.images.dtype == DType::kU8 && a.images.contiguous() && a.w.dtype == DType::kF32 &&
         a.out.dtype == DType::kBf16;
}
Tensor patch_rows(const PatchEmbed& a, Scratch& scratch) {
  return scratch.take(DType::kBf16, {a.out.rows(), patch_depth(a)});
}
Product patch_product_in(const PatchEmbed& a, const Tensor& rows, const Tensor& weights, const Tensor& bias) {
  return {.x = rows, .w = weights, .bias = bias, .table = a.positions, .out = a.out};
}
// Weights and bias in the memory that is made once.
Product patch_product_in(const PatchEmbed& a, const Tensor& rows, Scratch& made) {
  const Tensor weights = made.take(DType::kBf16, {a.w.rows(), patch_depth(a)});
  return patch_product_in(a, rows, weights, made.take(DType::kF32, {a.w.rows()}));
}
Product patch_product(const Op& op) {
  Scratch scratch(nullptr);
  const auto& a = std::get<PatchEmbed>(op.args);
  return patch_product_in(a, patch_rows(a, scratch), Tensor(DType::kBf16, {a.w.rows(), patch_depth(a)}, nullptr),
                          a.bias);
}
size_t patch_product_workspace(const Op& op) {
  Scratch scratch(nullptr);
  patch_rows(std::get<PatchEmbed>(op.args), scratch);
  return scratch.used() + product_scratch_bytes(patch_product(op));
}
Launch prepare_patch_product(const Op& op, const GpuContext& context) {
  const auto& a = std::get<PatchEmbed>(op.args);
  Scratch scratch(context.workspace);
  const Tensor rows = patch_rows(a, scratch);
  Scratch room(nullptr);
  patch_product_in(a, rows, room);
  Scratch made(context.share(a.w.data, room.used(), [&](void* memory) {
    Scratch at(memory);
    const Product product = patch_product_in(a, rows, at);
    launch_patch_weights(a, product.w, product.bias, context.stream);
  }));
  return [a, rows, product = prepare_product(patch_product_in(a, rows, made), scratch, context)](Stream stream) {
    launch_patch_rows(a, rows, stream);
    product(stream);
  };
}

// --- a norm, then a product on h = norm(x), cast where the weights have codes

bool can_layer_norm_linear(const Op& op) {
  const auto& a = std::get<LayerNormLinear>(op.args);
  return a.x.rows() > 0 && a.x.cols() <= 8192 && same_types(a.x, a.w, a.out, a.factors);
}
bool can_layer_norm_qkv(const Op& op) {
  const auto& a = std::get<LayerNormQkv>(op.args);
  return a.x.rows() > 0 && a.x.cols() <= 8192 && same_types(a.x, a.wq, a.out) && weights_stack({a.wq, a.wk, a.wv}) &&
         weights_stack({a.bq, a.bk, a.bv});
}
bool can_norm_gate_up_gelu(const Op& op) {
  const auto& a = std::get<NormGateUpGelu>(op.args);
  return a.x.rows() > 0 && a.x.cols() <= 8192 && same_types(a.x, a.w_gate, a.out, a.factors) &&
         a.w_gate.row_stride == a.w_up.row_stride && a.w_up.dtype == a.w_gate.dtype;
}
bool can_norm_qkv_rope(const Op& op) {
  const auto& a = std::get<NormQkvRope>(op.args);
  return a.x.rows() > 0 && a.x.cols() <= 8192 && same_types(a.x, a.wk, a.k_cache) &&
         weights_stack({a.wq, a.wk, a.wv}) && a.k_cache.row_stride == a.v_cache.row_stride;
}

// The first part of the scratch memory.
Tensor normalized_rows(const Tensor& x, Scratch& scratch) { return scratch.take(x.dtype, {x.rows(), x.cols()}); }

// Without codes in its result.
template <class Args>
Product norm_product(const Args& a, Scratch& scratch) {
  const Tensor h = normalized_rows(a.x, scratch);
  return without_codes(product_in(a, operand_rows(h, weight_of(a), scratch), scratch), a.x.dtype, scratch);
}
template <class Args>
Product norm_product_shape(const Op& op) {
  Scratch scratch(nullptr);
  return norm_product(std::get<Args>(op.args), scratch);
}
template <class Args>
size_t norm_product_workspace(const Op& op) {
  Scratch scratch(nullptr);
  const Product product = norm_product(std::get<Args>(op.args), scratch);
  return scratch.used() + product_scratch_bytes(product);
}
template <class Args>
Launch prepare_norm_product(const Op& op, const GpuContext& context) {
  const auto& a = std::get<Args>(op.args);
  Scratch scratch(context.workspace);
  const Tensor h = normalized_rows(a.x, scratch);
  const Tensor rows = operand_rows(h, weight_of(a), scratch);
  const bool at_once = norm_makes_codes(a, rows);
  return [norm = norm_launch(a, at_once ? rows : h), cast = cast_launch(at_once ? rows : h, rows),
          product = prepare_whole(product_in(a, rows, scratch), a.x.dtype, scratch, context)](Stream stream) {
    norm(stream);
    cast(stream);
    product(stream);
  };
}
template <class Args>
GpuOp norm_then_product(const char* kernel, bool (*can)(const Op&)) {
  return {Args::kName, kernel, can, norm_product_workspace<Args>, prepare_norm_product<Args>, norm_product_shape<Args>};
}

// --- the rest: one kernel each

bool can_cast(const Op& op) {
  const auto& a = std::get<Cast>(op.args);
  return is_scaled(a.x.dtype) ? is_float(a.out) : is_float(a.x) && (is_float(a.out) || is_scaled(a.out.dtype));
}
bool can_float(const Op& op) {
  bool fits = true;
  for_each_tensor(op, [&](const char*, const Tensor& t, Access) {
    fits = fits && (is_float(t) || t.dtype == DType::kI32 || t.dtype == DType::kU8);
  });
  return fits;
}
bool can_norm(const Op& op) {
  bool fits = can_float(op);
  for_each_tensor(op, [&](const char*, const Tensor& t, Access) { fits = fits && t.cols() <= 8192; });
  return fits;
}
size_t attention_workspace(const Op& op) { return attention_workspace_bytes(std::get<Attention>(op.args)); }

bool can_attention(const Op& op) {
  const auto& a = std::get<Attention>(op.args);
  return a.q.dtype == a.k.dtype && a.k.dtype == a.v.dtype && a.v.dtype == a.out.dtype &&
         a.k.row_stride == a.v.row_stride && is_float(a.q) && a.k.shape[1] <= 12000;
}
Launch prepare_attention(const Op& op, const GpuContext& context) {
  const auto a = std::get<Attention>(op.args);
  void* const workspace = context.workspace;
  return [=](Stream stream) { launch_attention(a, workspace, stream); };
}

bool can_resize_frames(const Op&) { return true; }
size_t resize_frames_workspace(const Op& op) { return resize_frames_workspace_bytes(std::get<ResizeFrames>(op.args)); }
Launch prepare_resize_frames(const Op& op, const GpuContext& context) {
  const auto a = std::get<ResizeFrames>(op.args);
  void* const workspace = context.workspace;
  return [=](Stream stream) { launch_resize_frames(a, workspace, stream); };
}

template <class Args, void (*kLaunch)(const Args&, Stream)>
Launch prepare_simple(const Op& op, const GpuContext&) {
  const Args a = std::get<Args>(op.args);
  return [=](Stream stream) { kLaunch(a, stream); };
}
template <class Args, void (*kLaunch)(const Args&, Stream)>
GpuOp simple(const char* kernel, bool (*can)(const Op&) = can_float) {
  return {Args::kName, kernel, can, no_workspace, prepare_simple<Args, kLaunch>};
}

// Of several rows with one name, the first that can.
const GpuOp kTable[] = {
    simple<Linear, launch_few_rows_linear>("gpu.few_rows_linear", can_few_rows<Linear>),
    simple<Attention, launch_attention_cluster>("gpu.attention_cluster", can_attention_cluster),
    simple<LinearResidual, launch_few_rows_linear_residual>("gpu.few_rows", can_few_rows<LinearResidual>),
    simple<NormQkvRope, launch_few_rows_norm_qkv_rope>("gpu.few_rows", can_few_rows<NormQkvRope>),
    simple<NormGateUpGelu, launch_few_rows_norm_gate_up_gelu>("gpu.few_rows", can_few_rows<NormGateUpGelu>),
    {ResizeFrames::kName, "gpu.resize_frames", can_resize_frames, resize_frames_workspace, prepare_resize_frames},
    simple<Patchify, launch_patchify>("gpu.patchify"),
    {PatchEmbed::kName, "gpu.patch_rows + gemm", can_patch_product, patch_product_workspace, prepare_patch_product,
     patch_product},
    {Linear::kName, "gemm", can_linear, linear_workspace, prepare_linear, linear_product},
    simple<AddRows, launch_add_rows>("gpu.add_rows"),
    simple<LayerNorm, launch_layer_norm>("gpu.layer_norm", can_norm),
    simple<RmsNorm, launch_rms_norm>("gpu.rms_norm", can_norm),
    simple<AdaRmsNorm, launch_ada_rms_norm>("gpu.ada_rms_norm", can_norm),
    simple<Rope, launch_rope>("gpu.rope"),
    simple<ScatterRows, launch_scatter_rows>("gpu.scatter_rows"),
    simple<GatherRows, launch_gather_rows>("gpu.gather_rows"),
    {Attention::kName, "gpu.attention (mma)", can_attention, attention_workspace, prepare_attention},
    simple<Attention, launch_plain_attention>("gpu.attention (plain)", can_attention),
    simple<ResidualAdd, launch_residual_add>("gpu.residual_add"),
    simple<GatedResidual, launch_gated_residual>("gpu.gated_residual"),
    simple<GeluMul, launch_gelu_mul>("gpu.gelu_mul"),
    simple<GatherPrefix, launch_gather_prefix>("gpu.gather_prefix"),
    simple<ConcatRow, launch_concat_row>("gpu.concat_row"),
    simple<Cast, launch_cast>("gpu.cast", can_cast),
    simple<EulerStep, launch_euler_step>("gpu.euler_step"),
    simple<SelectRows, launch_select_rows>("gpu.select_rows"),
    simple<Guidance, launch_guidance>("gpu.guidance"),
    norm_then_product<LayerNormQkv>("gpu.layer_norm + gemm", can_layer_norm_qkv),
    norm_then_product<LayerNormLinear>("gpu.layer_norm + gemm", can_layer_norm_linear),
    {LinearResidual::kName, "gemm", can_linear_residual, linear_residual_workspace, prepare_linear_residual,
     linear_residual_shape},
    norm_then_product<NormQkvRope>("gpu.norm + gemm + gpu.rope_cache", can_norm_qkv_rope),
    norm_then_product<NormGateUpGelu>("gpu.norm + gemm", can_norm_gate_up_gelu),
};

}  // namespace

const GpuOp* find_gpu_op(const Op& op, std::span<const GpuOp> own, std::span<const std::string> without) {
  const auto left_out = [&](std::string_view kernel) {
    return std::ranges::any_of(without, [&](const std::string& word) { return kernel.find(word) != kernel.npos; });
  };
  for (const std::span<const GpuOp> rows : {own, std::span<const GpuOp>(kTable)}) {
    const auto found = std::ranges::find_if(
        rows, [&](const GpuOp& row) { return row.name == op_name(op) && !left_out(row.kernel) && row.can(op); });
    if (found != rows.end()) return &*found;
  }
  return nullptr;
}

}  // namespace tendon::gpu
