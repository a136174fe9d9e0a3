// The operation attention on wgmma: heads of 256 columns with many queries, and heads of 72 with up to 256 keys.
#pragma once

#include <vector>

#include "backend/gpu/op_table.h"
#include "backend/gpu/runtime.h"

namespace tendon::gpu::attention {

// The operation's rows of the table; none when the card is no sm_90 or its driver cannot describe tensors to it.
std::vector<GpuOp> attention_rows(Runtime& runtime);

}  // namespace tendon::gpu::attention
