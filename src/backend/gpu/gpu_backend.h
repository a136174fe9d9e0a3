// The backend of a card: the operations of op_table, one graph per plan.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/gemm/table.h"
#include "backend/gpu/library_gemm.h"
#include "backend/gpu/op_table.h"
#include "backend/gpu/runtime.h"
#include "backend/gpu/special_products.h"
#include "base/log.h"

namespace tendon::gpu {

struct GpuBackendParts {
  std::string name;  // "cuda"
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<LibraryGemm> library;  // null: products run on our own kernels. Goes before the runtime does.
  std::unique_ptr<SpecialProducts> special = nullptr;  // kernels of this architecture alone
  std::optional<gemm::Table> table = {};               // which kernel runs which product
  bool graph = true;                                   // false: launch a plan's kernels one by one
  std::vector<GpuOp> own_ops = {};        // operations for this vendor's cards only; they come before all cards' own
  std::vector<std::string> without = {};  // words of kernels to leave out
  LogSink log = {};
};

std::unique_ptr<Backend> make_gpu_backend(GpuBackendParts parts);

}  // namespace tendon::gpu
