// gpu::Runtime over the CUDA runtime library.
#pragma once

#include <memory>

#include <cuda_runtime.h>

#include "backend/gpu/runtime.h"

namespace tendon {

namespace gpu {
// Throws Error(kDevice) naming the call.
void require(cudaError_t status, const char* what);
}  // namespace gpu

inline cudaStream_t cuda_stream(gpu::Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }

// Makes the card current for the calling thread and opens a stream on it.
std::unique_ptr<gpu::Runtime> make_cuda_runtime(int device);

}  // namespace tendon
