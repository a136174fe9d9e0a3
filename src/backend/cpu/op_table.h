// Every operation of the CPU backend, one row each: the basic ones. Fused ones are expanded by the plan.
#pragma once

#include <span>

#include "backend/cpu/kernel.h"

namespace tendon {

CpuOp cpu_add_rows();
CpuOp cpu_ada_rms_norm();
CpuOp cpu_attention();
CpuOp cpu_cast();
CpuOp cpu_concat_row();
CpuOp cpu_euler_step();
CpuOp cpu_gated_residual();
CpuOp cpu_gather_prefix();
CpuOp cpu_gather_rows();
CpuOp cpu_gelu_mul();
CpuOp cpu_guidance();
CpuOp cpu_layer_norm();
CpuOp cpu_linear();
CpuOp cpu_patchify();
CpuOp cpu_residual_add();
CpuOp cpu_resize_frames();
CpuOp cpu_rms_norm();
CpuOp cpu_rope();
CpuOp cpu_scatter_rows();
CpuOp cpu_select_rows();

std::span<const CpuOp> cpu_op_table();

// Null when the backend has no kernel for the operation.
const CpuOp* find_cpu_op(const Op& op);

}  // namespace tendon
