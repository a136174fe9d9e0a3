// The simulated card's queue: what `launch` of gpu_rt.h fills when kernels are compiled for the shim.
#pragma once

#include <functional>

#include "backend/gpu/stream.h"
#include "backend/sim/simt.h"

namespace tendon::sim {

// Runs the kernel after what was submitted before, or records it while the stream is being captured. Throws
// Error(kDevice), also for what an earlier kernel did.
void submit(gpu::Stream stream, simt::Kernel kernel);
// The same for work that is not a kernel of ours: copies, a library's products.
void submit(gpu::Stream stream, std::function<void()> work);

}  // namespace tendon::sim
