// An operation with its arguments, and what can be asked of any operation.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "ops/basic_ops.h"
#include "ops/denoise_loop.h"
#include "ops/fused_ops.h"

namespace tendon {

using OpArgs = std::variant<ResizeFrames, Patchify, Linear, AddRows, LayerNorm, RmsNorm, AdaRmsNorm, Rope, ScatterRows,
                            GatherRows, Attention, ResidualAdd, GatedResidual, GeluMul, GatherPrefix, ConcatRow, Cast,
                            EulerStep, SelectRows, Guidance, PatchEmbed, LayerNormQkv, AttentionToCodes,
                            LayerNormLinear, LinearResidual, NormQkvRope, NormGateUpGelu, DenoiseLoop>;

struct Op {
  OpArgs args;
  std::string scope;  // where in the forward: "prefix.3"
};

// The one word of the operation: "rms_norm".
inline std::string_view op_name(const Op& op) {
  return std::visit([](const auto& args) -> std::string_view { return args.kName; }, op.args);
}

// "prefix.3.rms_norm", as shown in traces and messages.
inline std::string op_label(const Op& op) { return op.scope + "." + std::string(op_name(op)); }

// Calls f(name, tensor, access) for every defined tensor of the operation.
template <class F>
void for_each_tensor(Op& op, F&& f) {
  std::visit(
      [&](auto& args) {
        args.tensors([&](const char* name, Tensor& tensor, Access access) {
          if (tensor.defined()) f(name, tensor, access);
        });
      },
      op.args);
}

template <class F>
void for_each_tensor(const Op& op, F&& f) {
  Op copy = op;
  for_each_tensor(copy,
                  [&](const char* name, Tensor& tensor, Access access) { f(name, std::as_const(tensor), access); });
}

// "linear x[788, 2048] bf16, w[2048, 2048] bf16, out[788, 2048] bf16"
std::string describe(const Op& op);

// Throws Error(kInternal) naming the operation and the shapes when they do not fit the operation's definition.
void validate(const Op& op);

}  // namespace tendon
