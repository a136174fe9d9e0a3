// What a vendor's library of products computes, by plain loops on the host.
#pragma once

#include "backend/gpu/library_gemm.h"

namespace tendon::sim {

void multiply(const gpu::GemmArgs& args);

}  // namespace tendon::sim
