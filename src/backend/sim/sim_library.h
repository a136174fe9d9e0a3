// A vendor's library of products, played by plain loops on the host. For tests of the path that has one.
#pragma once

#include <memory>

#include "backend/gpu/library_gemm.h"

namespace tendon::sim {

std::unique_ptr<gpu::LibraryGemm> make_sim_library();

}  // namespace tendon::sim
