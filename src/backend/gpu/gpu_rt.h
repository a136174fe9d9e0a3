// How kernels are written down and launched, for the sources of this folder: the vendor's compiler and runtime, or the
// tests' shim (TENDON_SIMT), behind one set of names.
#pragma once

#include "backend/gpu/stream.h"
#include "base/dtype.h"

#ifdef TENDON_SIMT
#include "backend/sim/device_words.h"
#include "backend/sim/named_kernels.h"
#include "backend/sim/sim_stream.h"
#elif defined(__HIP__)
#include <tuple>
#include <utility>

#include "backend/hip/device_words.h"
#include "backend/hip/launch.h"
#else
#include <atomic>

#include <cuda_runtime.h>

#define TENDON_DEVICE __device__ __forceinline__
#define TENDON_KERNEL __global__
// name: the block's dynamic shared memory, unsigned char, 16-byte aligned.
#define TENDON_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
// T name[count], one for the block, 16-byte aligned.
#define TENDON_SHARED(T, name, count) __shared__ __align__(16) T name[count]
#endif

namespace tendon::gpu {

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

// launch(): launches kKernel(args...). Raises the kernel's shared memory limit when it needs more than ever before.
// Throws Error(kDevice).
#ifdef TENDON_SIMT
inline bool has_clusters() { return true; }

template <auto kKernel, class... Args>
void launch(const LaunchShape& shape, const Args&... args) {
  sim::keep_name<kKernel>();
  sim::submit(shape.stream, simt::Kernel{{.grid = shape.grid,
                                          .block = shape.block,
                                          .shared_bytes = shape.shared_bytes,
                                          .overlaps = shape.overlaps,
                                          .cluster = shape.cluster},
                                         [args...] { kKernel(args...); }});
}
#elif defined(__HIP__)
inline bool has_clusters() { return false; }

template <class... Parameters, class... Args>
void launch_with(const void* kernel, void (*)(Parameters...), const LaunchShape& shape, const Args&... args) {
  std::tuple<Parameters...> values(args...);
  const hip::LaunchSize size{.grid = {shape.grid.x, shape.grid.y, shape.grid.z},
                             .block = {shape.block.x, shape.block.y, shape.block.z},
                             .shared_bytes = shape.shared_bytes};
  [&]<size_t... i>(std::index_sequence<i...>) {
    void* addresses[] = {&std::get<i>(values)...};
    hip::launch_kernel(kernel, size, shape.stream, addresses);
  }
  (std::index_sequence_for<Parameters...>());
}
template <auto kKernel, class... Args>
void launch(const LaunchShape& shape, const Args&... args) {
  launch_with(reinterpret_cast<const void*>(kKernel), kKernel, shape, args...);
}
#else
// Throws Error(kDevice) naming the call.
void require(cudaError_t status, const char* what);
// The same of a launch, naming the kernel and its shape.
void require_launch(cudaError_t status, const void* kernel, const cudaLaunchConfig_t& config);

// Lets a kernel have so much dynamic shared memory, and never less again: of two settings the later one counts. (The
// persistent loops, whose size is one number, set theirs where they ask whether they fit.)
template <auto kKernel>
void allow_shared(size_t bytes) {
  static std::atomic<size_t> limit{0};  // static shared memory counts towards the 48 KB that need no leave
  if (bytes <= limit) return;
  require(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
          "raising a kernel's shared memory");
  limit = bytes;
}

// Whether the current card runs clusters of blocks and overlapping kernels (since Hopper).
inline bool has_clusters() {
  static const bool has = [] {
    int device = 0;
    int major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
  }();
  return has;
}

template <auto kKernel, class... Args>
void launch(const LaunchShape& shape, const Args&... args) {
  // Whole 16-byte words: the compiler may load one where a part of it is asked for.
  const size_t shared_bytes = (shape.shared_bytes + 15) / 16 * 16;
  allow_shared<kKernel>(shared_bytes);
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (shape.overlaps && has_clusters()) {
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
  config.dynamicSmemBytes = shared_bytes;
  config.stream = reinterpret_cast<cudaStream_t>(shape.stream);
  config.attrs = attributes;
  config.numAttrs = count;
  require_launch(cudaLaunchKernelEx(&config, kKernel, args...), reinterpret_cast<const void*>(kKernel), config);
}
#endif

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace tendon::gpu
