#include "backend/gpu/op_table.h"

#include <algorithm>
#include <array>
#include <optional>

#include "backend/gpu/kernels.h"
#include "base/check.h"

namespace tendon::gpu {
namespace {

constexpr size_t kAlign = 256;
size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

bool is_float(const Tensor& t) { return !t.defined() || t.dtype == DType::kF32 || t.dtype == DType::kBf16; }

// The parts as one tensor of stacked rows, when they lie one behind the other in memory.
std::optional<Tensor> stacked(std::initializer_list<Tensor> parts) {
  Tensor all;
  for (const Tensor& part : parts) {
    if (!part.defined()) continue;
    if (!all.defined()) {
      all = part;
      continue;
    }
    const bool follows = part.dtype == all.dtype && all.contiguous() && part.contiguous() &&
                         static_cast<char*>(all.data) + all.bytes() == part.data;
    if (!follows) return {};
    all.shape =
        all.shape.rank() == 1 ? Shape{all.elements() + part.elements()} : Shape{all.rows() + part.rows(), all.cols()};
  }
  return all;
}

// Unbound while the plan asks what is supported: planned buffers count as fitting.
bool weights_stack(std::initializer_list<Tensor> parts) {
  return std::ranges::all_of(parts, [](const Tensor& t) { return !t.defined() || t.data != nullptr; }) &&
         stacked(parts).has_value();
}

// Hands out parts of the workspace.
class Scratch {
 public:
  explicit Scratch(void* workspace) : base_(static_cast<char*>(workspace)) {}
  Tensor take(DType dtype, const Shape& shape) {
    Tensor t(dtype, shape, base_ == nullptr ? nullptr : base_ + used_);
    used_ += aligned(t.bytes());
    return t;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

// Products take their bias in the type of the result.
Tensor bias_in(DType dtype, const Tensor& bias, const GpuContext& context) {
  if (!bias.defined() || bias.dtype == dtype) return bias;
  Tensor copy(dtype, bias.shape, context.allocate(static_cast<size_t>(bias.elements()) * dtype_bytes(dtype)));
  launch_cast({.x = bias.reshaped({1, bias.elements()}), .out = copy.reshaped({1, bias.elements()})}, context.stream);
  return copy;
}

// Who computes a product: the library.
std::shared_ptr<Gemm> make_gemm(const GemmArgs& args, const GpuContext& context) {
  GemmArgs typed = args;
  typed.bias = bias_in(args.out.dtype, args.bias, context);
  if (context.library == nullptr)
    throw_device("There is no kernel for the product x {} · w {}.", to_string(args.x.shape), to_string(args.w.shape));
  return context.library->prepare(typed);
}

size_t no_workspace(const Op&) { return 0; }

// --- linear
// -----------------------------------------------------------------------------------------------------------

bool same_types(const Tensor& x, const Tensor& w, const Tensor& out) {
  return is_float(out) && x.dtype == w.dtype && w.dtype == out.dtype;
}

// bf16 rows against f32 weights (the action read-out): the rows are widened first.
bool widens_x(const Linear& a) {
  return a.x.dtype == DType::kBf16 && a.w.dtype == DType::kF32 && a.out.dtype == DType::kF32;
}

bool can_linear(const Op& op) {
  const auto& a = std::get<Linear>(op.args);
  return a.x.rows() > 0 && (same_types(a.x, a.w, a.out) || widens_x(a));
}

size_t linear_workspace(const Op& op) {
  const auto& a = std::get<Linear>(op.args);
  Scratch scratch(nullptr);
  if (widens_x(a)) scratch.take(DType::kF32, {a.x.rows(), a.x.cols()});
  if (a.activation == Activation::kSilu) scratch.take(DType::kF32, {a.out.rows(), a.out.cols()});
  return scratch.used();
}

Launch prepare_linear(const Op& op, const GpuContext& context) {
  const auto& a = std::get<Linear>(op.args);
  Scratch scratch(context.workspace);
  Tensor x = a.x;
  if (widens_x(a)) x = scratch.take(DType::kF32, {a.x.rows(), a.x.cols()});
  const bool silu_after = a.activation == Activation::kSilu;
  // f32 only: the engine's SiLU layers are the f32 suffix projections.
  auto gemm = make_gemm(
      {.x = x, .w = a.w, .out = a.out, .bias = a.bias, .residual = {}, .gelu = a.activation == Activation::kGeluTanh},
      context);
  return [=](Stream stream) {
    if (x.data != a.x.data) launch_cast({.x = a.x, .out = x}, stream);
    gemm->launch(stream);
    if (silu_after) launch_bias_activation(a.out, {}, Activation::kSilu, a.out, stream);
  };
}

bool can_linear_any(const Op& op) {
  const auto& a = std::get<Linear>(op.args);
  return can_linear(op) && (a.activation != Activation::kSilu || a.out.dtype == DType::kF32);
}

// --- fused products
// ---------------------------------------------------------------------------------------------------

bool can_linear_residual(const Op& op) {
  const auto& a = std::get<LinearResidual>(op.args);
  return a.x.rows() > 0 && !a.gate.defined() && same_types(a.x, a.w, a.out) && a.residual.dtype == a.out.dtype;
}
Launch prepare_linear_residual(const Op& op, const GpuContext& context) {
  const auto& a = std::get<LinearResidual>(op.args);
  auto gemm = make_gemm({.x = a.x, .w = a.w, .out = a.out, .bias = a.bias, .residual = a.residual}, context);
  return [=](Stream stream) { gemm->launch(stream); };
}

bool can_layer_norm_linear(const Op& op) {
  const auto& a = std::get<LayerNormLinear>(op.args);
  return a.x.rows() > 0 && a.x.cols() <= 8192 && same_types(a.x, a.w, a.out) && a.activation != Activation::kSilu;
}
size_t layer_norm_linear_workspace(const Op& op) {
  const auto& a = std::get<LayerNormLinear>(op.args);
  Scratch scratch(nullptr);
  scratch.take(a.x.dtype, {a.x.rows(), a.x.cols()});
  return scratch.used();
}
Launch prepare_layer_norm_linear(const Op& op, const GpuContext& context) {
  const auto& a = std::get<LayerNormLinear>(op.args);
  const Tensor h = Scratch(context.workspace).take(a.x.dtype, {a.x.rows(), a.x.cols()});
  auto gemm = make_gemm({.x = h,
                         .w = a.w,
                         .out = a.out,
                         .bias = a.linear_bias,
                         .residual = {},
                         .gelu = a.activation == Activation::kGeluTanh},
                        context);
  const LayerNorm norm{.x = a.x, .gain = a.gain, .bias = a.bias, .out = h, .eps = a.eps};
  return [=](Stream stream) {
    launch_layer_norm(norm, stream);
    gemm->launch(stream);
  };
}

bool can_layer_norm_qkv(const Op& op) {
  const auto& a = std::get<LayerNormQkv>(op.args);
  return a.x.rows() > 0 && a.x.cols() <= 8192 && same_types(a.x, a.wq, a.out) && weights_stack({a.wq, a.wk, a.wv}) &&
         weights_stack({a.bq, a.bk, a.bv});
}
size_t layer_norm_qkv_workspace(const Op& op) {
  const auto& a = std::get<LayerNormQkv>(op.args);
  Scratch scratch(nullptr);
  scratch.take(a.x.dtype, {a.x.rows(), a.x.cols()});
  return scratch.used();
}
Launch prepare_layer_norm_qkv(const Op& op, const GpuContext& context) {
  const auto& a = std::get<LayerNormQkv>(op.args);
  const Tensor h = Scratch(context.workspace).take(a.x.dtype, {a.x.rows(), a.x.cols()});
  auto gemm = make_gemm(
      {.x = h, .w = *stacked({a.wq, a.wk, a.wv}), .out = a.out, .bias = *stacked({a.bq, a.bk, a.bv}), .residual = {}},
      context);
  const LayerNorm norm{.x = a.x, .gain = a.gain, .bias = a.bias, .out = h, .eps = a.eps};
  return [=](Stream stream) {
    launch_layer_norm(norm, stream);
    gemm->launch(stream);
  };
}

void launch_norm(const Tensor& x, const NormParams& norm, const Tensor& out, Stream stream) {
  if (norm.adaptive()) {
    launch_ada_rms_norm({.x = x, .scale = norm.scale, .shift = norm.shift, .out = out, .eps = norm.eps}, stream);
  } else {
    launch_rms_norm({.x = x, .gain = norm.gain, .out = out, .eps = norm.eps}, stream);
  }
}

int64_t qkv_width(const NormQkvRope& a) { return (a.wq.defined() ? a.wq.rows() : 0) + a.wk.rows() + a.wv.rows(); }
bool can_norm_qkv_rope(const Op& op) {
  const auto& a = std::get<NormQkvRope>(op.args);
  return a.x.rows() > 0 && a.x.cols() <= 8192 && same_types(a.x, a.wk, a.k_cache) &&
         weights_stack({a.wq, a.wk, a.wv}) && a.k_cache.row_stride == a.v_cache.row_stride;
}
size_t norm_qkv_rope_workspace(const Op& op) {
  const auto& a = std::get<NormQkvRope>(op.args);
  Scratch scratch(nullptr);
  scratch.take(a.x.dtype, {a.x.rows(), a.x.cols()});
  scratch.take(a.x.dtype, {a.x.rows(), qkv_width(a)});
  return scratch.used();
}
Launch prepare_norm_qkv_rope(const Op& op, const GpuContext& context) {
  const auto& a = std::get<NormQkvRope>(op.args);
  Scratch scratch(context.workspace);
  const Tensor h = scratch.take(a.x.dtype, {a.x.rows(), a.x.cols()});
  const Tensor qkv = scratch.take(a.x.dtype, {a.x.rows(), qkv_width(a)});
  auto gemm = make_gemm({.x = h, .w = *stacked({a.wq, a.wk, a.wv}), .out = qkv, .bias = {}, .residual = {}}, context);
  return [=](Stream stream) {
    launch_norm(a.x, a.norm, h, stream);
    gemm->launch(stream);
    launch_rope_cache(a, qkv, stream);
  };
}

bool can_norm_gate_up_gelu(const Op& op) {
  const auto& a = std::get<NormGateUpGelu>(op.args);
  return a.x.rows() > 0 && a.x.cols() <= 8192 && same_types(a.x, a.w_gate, a.out) && weights_stack({a.w_gate, a.w_up});
}
size_t norm_gate_up_gelu_workspace(const Op& op) {
  const auto& a = std::get<NormGateUpGelu>(op.args);
  Scratch scratch(nullptr);
  scratch.take(a.x.dtype, {a.x.rows(), a.x.cols()});
  scratch.take(a.x.dtype, {a.x.rows(), 2 * a.w_gate.rows()});
  return scratch.used();
}
Launch prepare_norm_gate_up_gelu(const Op& op, const GpuContext& context) {
  const auto& a = std::get<NormGateUpGelu>(op.args);
  Scratch scratch(context.workspace);
  const int64_t n = a.w_gate.rows();
  const Tensor h = scratch.take(a.x.dtype, {a.x.rows(), a.x.cols()});
  const Tensor both = scratch.take(a.x.dtype, {a.x.rows(), 2 * n});
  auto gemm = make_gemm({.x = h, .w = *stacked({a.w_gate, a.w_up}), .out = both, .bias = {}, .residual = {}}, context);
  const GeluMul product{.gate = both.col_range(0, n), .up = both.col_range(n, n), .out = a.out};
  return [=](Stream stream) {
    launch_norm(a.x, a.norm, h, stream);
    gemm->launch(stream);
    launch_gelu_mul(product, stream);
  };
}

// --- the rest: one kernel each
// ------------------------------------------------------------------------------------------

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

template <class Args, void (*kLaunch)(const Args&, Stream)>
Launch prepare_simple(const Op& op, const GpuContext&) {
  const Args a = std::get<Args>(op.args);
  return [=](Stream stream) { kLaunch(a, stream); };
}
template <class Args, void (*kLaunch)(const Args&, Stream)>
GpuOp simple(const char* kernel, bool (*can)(const Op&) = can_float) {
  return {Args::kName, kernel, can, no_workspace, prepare_simple<Args, kLaunch>};
}

const GpuOp kTable[] = {
    simple<Patchify, launch_patchify>("gpu.patchify"),
    {Linear::kName, "gemm", can_linear_any, linear_workspace, prepare_linear},
    simple<AddRows, launch_add_rows>("gpu.add_rows"),
    simple<LayerNorm, launch_layer_norm>("gpu.layer_norm", can_norm),
    simple<RmsNorm, launch_rms_norm>("gpu.rms_norm", can_norm),
    simple<AdaRmsNorm, launch_ada_rms_norm>("gpu.ada_rms_norm", can_norm),
    simple<Rope, launch_rope>("gpu.rope"),
    simple<ScatterRows, launch_scatter_rows>("gpu.scatter_rows"),
    simple<GatherRows, launch_gather_rows>("gpu.gather_rows"),
    {Attention::kName, "gpu.attention (mma)", can_attention, attention_workspace, prepare_attention},
    simple<ResidualAdd, launch_residual_add>("gpu.residual_add"),
    simple<GatedResidual, launch_gated_residual>("gpu.gated_residual"),
    simple<GeluMul, launch_gelu_mul>("gpu.gelu_mul"),
    simple<GatherPrefix, launch_gather_prefix>("gpu.gather_prefix"),
    simple<ConcatRow, launch_concat_row>("gpu.concat_row"),
    simple<Cast, launch_cast>("gpu.cast"),
    simple<EulerStep, launch_euler_step>("gpu.euler_step"),
    {LayerNormQkv::kName, "gpu.layer_norm + gemm", can_layer_norm_qkv, layer_norm_qkv_workspace,
     prepare_layer_norm_qkv},
    {LayerNormLinear::kName, "gpu.layer_norm + gemm", can_layer_norm_linear, layer_norm_linear_workspace,
     prepare_layer_norm_linear},
    {LinearResidual::kName, "gemm (beta 1)", can_linear_residual, no_workspace, prepare_linear_residual},
    {NormQkvRope::kName, "gpu.norm + gemm + gpu.rope_cache", can_norm_qkv_rope, norm_qkv_rope_workspace,
     prepare_norm_qkv_rope},
    {NormGateUpGelu::kName, "gpu.norm + gemm + gpu.gelu_mul", can_norm_gate_up_gelu, norm_gate_up_gelu_workspace,
     prepare_norm_gate_up_gelu},
};

}  // namespace

const GpuOp* find_gpu_op(const Op& op) {
  const auto found =
      std::ranges::find(kTable, op_name(op), [](const GpuOp& row) { return std::string_view(row.name); });
  return found != std::end(kTable) && found->can(op) ? &*found : nullptr;
}

}  // namespace tendon::gpu
