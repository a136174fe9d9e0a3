// The operation denoise_loop on the persistent kernels: batch 1, up to 12 and up to 56 rows, on cards with room for 128
// blocks (H100, H200).
#pragma once

#include <vector>

#include "backend/gpu/op_table.h"

namespace tendon::gpu::denoise {

// The operation's rows of the table, the kernel for few rows first.
std::vector<GpuOp> denoise_loop_rows();

}  // namespace tendon::gpu::denoise
