// The operations of a card's backend, as data.
#pragma once

#include <functional>
#include <optional>

#include "backend/gpu/products.h"
#include "backend/gpu/stream.h"
#include "ops/ops.h"

namespace tendon::gpu {

// What preparing an operation may use. Small buffers made here live as long as the executable.
struct GpuContext {
  const Products& products;
  void* workspace;
  std::function<void*(size_t bytes)> allocate;
  Stream stream;
  int architecture;  // 90 for "sm_90"
};

struct GpuOp {
  const char* name;
  const char* kernel;  // for `tendon info`
  bool (*can)(const Op& op);
  size_t (*workspace_bytes)(const Op& op);
  Launch (*prepare)(const Op& op, const GpuContext& context);
  // The product in it whose kernel is chosen by its shape; scratch tensors have no memory.
  Product (*product)(const Op& op) = nullptr;
};

// Null when the backend has no kernel for this operation with these types and shapes.
const GpuOp* find_gpu_op(const Op& op);

}  // namespace tendon::gpu
