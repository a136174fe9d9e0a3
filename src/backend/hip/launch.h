// How launch() of gpu_rt.h starts a kernel on an AMD card.
#pragma once

#include <cstddef>

#include "backend/gpu/stream.h"

namespace tendon::hip {

struct LaunchSize {
  unsigned grid[3], block[3];
  size_t shared_bytes;
};

// kernel: the address that stands for it in host code; parameters: an address for each argument. The card is the
// calling thread's current one. Throws Error(kDevice).
void launch_kernel(const void* kernel, const LaunchSize& size, gpu::Stream stream, void** parameters);

}  // namespace tendon::hip
