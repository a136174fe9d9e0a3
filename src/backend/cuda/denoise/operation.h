// The operation denoise_loop on the persistent kernel. Batch 1, up to 12 rows, on cards with room for 128 blocks in
// pairs (H100, H200).
#pragma once

#include "backend/gpu/op_table.h"

namespace tendon::gpu::denoise {

// The operation's row of the table.
GpuOp denoise_loop_row();

}  // namespace tendon::gpu::denoise
