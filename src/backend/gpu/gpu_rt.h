// How kernels are launched, for the sources of this folder: the vendor's runtime behind one set of names.
#pragma once

#include <atomic>

#include <cuda_runtime.h>

#include "backend/gpu/stream.h"
#include "base/dtype.h"

namespace tendon::gpu {

// Throws Error(kDevice) naming the call.
void require(cudaError_t status, const char* what);

// Calls f(T{}) with the element type of a float tensor; kernels are templates over it.
template <class F>
void with_float_type(DType dtype, F&& f) {
  if (dtype == DType::kBf16) {
    f(Bf16{});
  } else {
    f(float{});
  }
}

// How a kernel is launched. `overlaps`: the kernel may start before the one in front of it has ended, and calls
// wait_for_producers() before it touches what others write or read. `cluster`: blocks along x that share memory.
struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;
  Stream stream = nullptr;
  bool overlaps = false;
  unsigned cluster = 1;
};

// Launches kKernel(args...). Raises the kernel's shared memory limit when it needs more than ever before. Throws
// Error(kDevice).
template <auto kKernel, class... Args>
void launch(const LaunchShape& shape, const Args&... args) {
  static std::atomic<size_t> limit{size_t{48} << 10};
  if (shape.shared_bytes > limit) {
    require(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shape.shared_bytes)),
            "raising a kernel's shared memory");
    limit = shape.shared_bytes;
  }
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (shape.overlaps) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim = {shape.cluster, 1, 1};
    ++count;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = reinterpret_cast<cudaStream_t>(shape.stream);
  config.attrs = attributes;
  config.numAttrs = count;
  require(cudaLaunchKernelEx(&config, kKernel, args...), "launching a kernel");
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace tendon::gpu
