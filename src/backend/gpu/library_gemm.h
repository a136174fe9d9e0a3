// Matrix products on a card, and the vendor's library for them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/gpu/stream.h"
#include "ops/basic_ops.h"

namespace tendon::gpu {

// out = act(x · wᵀ + bias) + residual.  x (M, K), w (N, K), out (M, N); all bf16, or all f32, or x and w codes with
// scales and out bf16. Sums are f32, one rounding at the store.
struct GemmArgs {
  Tensor x, w, out;
  Tensor bias;      // (N) in out's type, or undefined
  Tensor residual;  // (M, N) like out, or undefined
  bool gelu = false;
};

// A product prepared for fixed addresses: a launch allocates nothing and may be captured.
class Gemm {
 public:
  virtual ~Gemm() = default;
  virtual void launch(Stream stream) const = 0;
};

// A vendor's library, with its handle and its workspace. All products of a library run on one stream, one by one.
class LibraryGemm {
 public:
  virtual ~LibraryGemm() = default;
  // The word before the colon of a kernel in a GEMM table: "cublaslt".
  virtual std::string_view name() const = 0;
  // For people: "cuBLASLt 13.1.0".
  virtual std::string version() const { return std::string(name()); }
  // Whether x and w may have these codes, e4m3 or i8.
  virtual bool multiplies(DType /*codes*/) const { return false; }
  // With the library's own choice of an algorithm when none is given. Null when it has none for this product, or when
  // the given one does not run it (a name from another version, say).
  virtual std::unique_ptr<Gemm> prepare(const GemmArgs& args, std::string_view algorithm = {}) const = 0;
  // Names of the algorithms that run it, the library's own choice first. Addresses are not read.
  virtual std::vector<std::string> algorithms(const GemmArgs& args) const = 0;
};

}  // namespace tendon::gpu
