// The operations of the CUDA backend, as data.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/cublaslt.h"
#include "backend/gpu/gpu_rt.h"
#include "ops/ops.h"

namespace tendon {

// Launches one operation; captured in a graph or called directly.
using Launch = std::function<void(gpu::Stream)>;

// What preparing an operation may use. Small buffers made here live as long as the executable.
struct CudaContext {
  const CublasLt& gemm;
  void* workspace;
  std::function<void*(size_t bytes)> allocate;
  gpu::Stream stream;
};

struct CudaOp {
  const char* name;
  const char* kernel;  // for `tendon info`
  bool (*can)(const Op& op);
  size_t (*workspace_bytes)(const Op& op);
  Launch (*prepare)(const Op& op, const CudaContext& context);
};

// Null when the backend has no kernel for this operation with these types and shapes.
const CudaOp* find_cuda_op(const Op& op);

}  // namespace tendon
