// The operations of a card's backend, as data.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "backend/gpu/products.h"
#include "backend/gpu/stream.h"
#include "ops/ops.h"

namespace tendon::gpu {

// What preparing an operation may use. Small buffers made here live as long as the executable.
struct GpuContext {
  const Products& products;
  void* workspace;
  std::function<void*(size_t bytes)> allocate;
  // Memory that `fill` fills (in stream order) once for all executables that ask for the same key: weights in another
  // order. It lives as long as one of them.
  std::function<void*(const void* key, size_t bytes, const std::function<void(void*)>& fill)> share;
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

// The first row that can, of `own` (a vendor's kernels) and then of all cards' kernels; null when there is none for
// this operation with these types and shapes. Rows whose kernel's name holds one of the words `without` do not count.
const GpuOp* find_gpu_op(const Op& op, std::span<const GpuOp> own = {}, std::span<const std::string> without = {});

}  // namespace tendon::gpu
