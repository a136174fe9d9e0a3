// What kind of work a kernel does, told from its name.
#pragma once

#include <cstdint>
#include <string_view>

namespace tendon::trace {

enum class OpClass : uint8_t { kGemm, kAttention, kNorm, kActivation, kRope, kCopy, kFill, kLoop, kOther };
inline constexpr int kOpClasses = 9;

std::string_view op_class_name(OpClass op_class);  // "GEMM", "attention", …; "whole loop": a kernel of many layers

// Of a kernel of any vendor's library, of PyTorch (eager and compiled), or of an operator: "nvjet_…", "Cijk_…",
// "triton_red_fused_…_rsqrt_0", "aten::addmm". The softmax of an attention made of two products counts as attention.
OpClass classify(std::string_view kernel);

// Of an operation of ours: "norm_qkv_rope" is a GEMM, as its product takes the time.
OpClass classify_operation(std::string_view op);

// Whether an attention kernel computes one layer's attention, not a part that follows (combining splits of the keys).
bool is_main_attention(std::string_view kernel);
bool is_softmax(std::string_view kernel);

}  // namespace tendon::trace
