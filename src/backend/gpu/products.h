// Which kernel runs a product: the tuned entry, else the nearest, else the library's own choice, else our own tiles.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "backend/gemm/table.h"
#include "backend/gpu/gemm.h"
#include "backend/gpu/launch.h"
#include "backend/gpu/library_gemm.h"
#include "backend/gpu/runtime.h"
#include "backend/gpu/special_products.h"

namespace tendon::gpu {

// What preparing a product may use.
struct ProductMemory {
  void* scratch;                                // product_scratch_bytes(), free while the product does not run
  std::function<void*(size_t bytes)> allocate;  // lives as long as the launch
};

gemm::Desc describe(const Product& p);

// What a library needs beside its own product: widened rows, or results that another kernel finishes.
size_t product_scratch_bytes(const Product& p);

// The parts as one tensor of stacked rows, when they lie one behind the other in memory.
std::optional<Tensor> stacked(std::initializer_list<Tensor> parts);

class Products {
 public:
  // Without a library our own kernels run everything; `special` is null where the card has no kernels of its own.
  // Throws Error(kBadInput) when the table names a tile of our own that does not exist. All pointers must outlive this.
  Products(Runtime& runtime, const LibraryGemm* library, const SpecialProducts* special,
           std::optional<gemm::Table> table);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // For `tendon info`: "cublaslt:66.20.35.1.0.0.0.0.2", "own:64x64x64x4/1", "wgmma:256x200x3/1x2/1", and why when it
  // was not measured.
  std::string kernel_name(const Product& p) const;
  Launch prepare(const Product& p, const ProductMemory& memory) const;
  // By the kernel that runs `plain`, the same without codes as its result; null when that kernel writes none.
  Launch prepare_codes(const Product& p, const Product& plain) const;

  // For the tuner: every kernel that could run it, the library's in its own order of preference.
  std::vector<std::string> candidates(const Product& p) const;
  // Null when this kernel cannot run it.
  Launch prepare_kernel(const Product& p, std::string_view kernel, const ProductMemory& memory) const;

 private:
  struct Choice {
    std::string kernel;
    const char* why;  // "" for a measured one
  };
  Choice choose(const Product& p) const;
  std::string own_default(const Product& p) const;
  bool library_takes(const Product& p) const;
  Launch prepare_library(const Product& p, std::string_view algorithm, const ProductMemory& memory) const;
  bool bf16_holds(const Tensor& bias) const;
  void* workspace() const;

  Runtime& runtime_;
  const LibraryGemm* library_;
  const SpecialProducts* special_;
  std::optional<gemm::Table> table_;
  int multiprocessors_;
  CutRoom room_;
  mutable void* workspace_ = nullptr;  // of split products, made when the first one is prepared
};

}  // namespace tendon::gpu
