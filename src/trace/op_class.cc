#include "trace/op_class.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>
#include <string>

namespace tendon::trace {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

bool has_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(words, [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

// Kernels of PyTorch's compiler list what was fused: "triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_3". Elementwise
// ones and reductions also name the operation that they prepare something for, as
// "triton_poi_fused__scaled_dot_product_cudnn_attention__to_copy_cat_mul_5" does.
bool is_fused_elementwise(std::string_view name) {
  return name.starts_with("triton_poi_") || name.starts_with("triton_per_") || name.starts_with("triton_red_");
}
OpClass classify_fused(std::string_view name) {
  if (has_any(name, {"flex_attention", "softmax"})) return OpClass::kAttention;
  if (!is_fused_elementwise(name) && has_any(name, {"scaled_dot_product"})) return OpClass::kAttention;
  if (has_any(name, {"triton_tem_", "_mm_", "_bmm", "_addmm"})) return OpClass::kGemm;
  if (has_any(name, {"rsqrt", "layer_norm", "rms_norm", "var_mean"})) return OpClass::kNorm;
  if (has_any(name, {"_cos_", "_sin_", "rotary", "rope"})) return OpClass::kRope;
  if (has_any(name, {"gelu", "silu", "tanh", "sigmoid"})) return OpClass::kActivation;
  if (has_any(name, {"_add", "_mul", "_sub", "_div"})) return OpClass::kOther;
  if (has_any(name, {"_cat", "copy", "clone", "embedding", "index", "slice", "transpose", "permute"})) {
    return OpClass::kCopy;
  }
  if (has_any(name, {"zeros", "full", "fill"})) return OpClass::kFill;
  return OpClass::kOther;
}

}  // namespace

std::string_view op_class_name(OpClass op_class) {
  constexpr std::array<std::string_view, kOpClasses> kNames = {"GEMM", "attention", "norm",       "activation", "RoPE",
                                                               "copy", "fill",      "whole loop", "other"};
  return kNames[static_cast<size_t>(op_class)];
}

OpClass classify(std::string_view kernel) {
  const std::string name = lower(kernel);
  if (name.starts_with("triton_")) return classify_fused(name);
  if (has_any(name, {"denoise::loop", "denoise_loop"})) return OpClass::kLoop;
  if (has_any(name, {"flash", "fmha", "attention", "attn", "_sdpa", "softmax", "mha_"})) return OpClass::kAttention;
  if (has_any(name, {"memset", "fillfunctor", "fill_", "aten::zero", "aten::fill", "aten::ones", "fillbuffer"})) {
    return OpClass::kFill;
  }
  if (has_any(name, {"gemm",          "nvjet",        "cijk_",      "splitkreduce",  "gemv",
                     "cutlass",       "wgmma",        "xmma",       "cublas",        "hipblaslt",
                     "few_rows",      "matmul",       "aten::mm",   "aten::addmm",   "aten::bmm",
                     "aten::baddbmm", "aten::linear", "_scaled_mm", "mkldnn_linear", "dot_kernel"})) {
    return OpClass::kGemm;
  }
  if (has_any(name, {"rope", "rotary", "rotate"})) return OpClass::kRope;
  if (has_any(name, {"layer_norm", "layernorm", "rms_norm", "rmsnorm", "batch_norm", "rowwisemoments", "rsqrt"})) {
    return OpClass::kNorm;
  }
  if (has_any(name, {"gelu", "silu", "swish", "sigmoid", "tanh", "relu", "act_and_mul"})) return OpClass::kActivation;
  if (has_any(name, {"copy", "memcpy", "catarray", "aten::cat", "gather", "scatter", "index", "transpose", "embedding",
                     "aten::clone", "patchify", "cast", "concat", "pack_keys"})) {
    return OpClass::kCopy;
  }
  return OpClass::kOther;
}

OpClass classify_operation(std::string_view op) {
  if (has_any(op, {"linear", "qkv", "gate_up", "patch_embed"})) return OpClass::kGemm;
  if (op == "residual_add" || op == "gated_residual" || op == "euler_step" || op == "add_rows") return OpClass::kOther;
  if (op == "select_rows") return OpClass::kCopy;
  return classify(op);
}

bool is_softmax(std::string_view kernel) { return has_any(lower(kernel), {"softmax"}); }

bool is_main_attention(std::string_view kernel) {
  const std::string name = lower(kernel);
  return !is_fused_elementwise(name) && has_any(name, {"flash", "fmha", "attention", "attn", "_sdpa", "mha_"}) &&
         !has_any(name, {"combine", "reduce", "convert", "preprocess", "softmax"});
}

}  // namespace tendon::trace
