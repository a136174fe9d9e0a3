#include "backend/cpu/op_table.h"

#include <array>

namespace tendon {

std::span<const CpuOp> cpu_op_table() {
  static const std::array kTable = {
      cpu_add_rows(),      cpu_ada_rms_norm(),   cpu_attention(),     cpu_cast(),         cpu_concat_row(),
      cpu_euler_step(),    cpu_gated_residual(), cpu_gather_prefix(), cpu_gather_rows(),  cpu_gelu_mul(),
      cpu_guidance(),      cpu_layer_norm(),     cpu_linear(),        cpu_patchify(),     cpu_residual_add(),
      cpu_resize_frames(), cpu_rms_norm(),       cpu_rope(),          cpu_scatter_rows(), cpu_select_rows(),
  };
  return kTable;
}

const CpuOp* find_cpu_op(const Op& op) {
  const std::string_view name = op_name(op);
  for (const CpuOp& row : cpu_op_table()) {
    if (row.name == name) return row.can(op) ? &row : nullptr;
  }
  return nullptr;
}

}  // namespace tendon
