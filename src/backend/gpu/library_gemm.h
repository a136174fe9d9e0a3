// Matrix products on a card, and the vendor's library for them.
#pragma once

#include <memory>
#include <string_view>

#include "backend/gpu/stream.h"
#include "ops/basic_ops.h"

namespace tendon::gpu {

// out = act(x · wᵀ + bias) + residual.  x (M, K), w (N, K), out (M, N); all bf16, or all f32. Sums are f32, one
// rounding at the store.
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
  virtual std::string_view name() const = 0;
  // Throws Error(kDevice) naming the shape when the library has no algorithm for it.
  virtual std::unique_ptr<Gemm> prepare(const GemmArgs& args) const = 0;
};

}  // namespace tendon::gpu
