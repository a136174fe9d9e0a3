// Matrix products through cuBLASLt, opened at run time: the binary starts without it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "ops/basic_ops.h"

namespace tendon {

// out = act(x · wᵀ + bias) + residual.  x (M, K), w (N, K), out (M, N); all bf16, or all f32. Sums are f32, one
// rounding at the store.
struct GemmArgs {
  Tensor x, w, out;
  Tensor bias;      // (N) in out's type, or undefined
  Tensor residual;  // (M, N) like out, or undefined
  bool gelu = false;
};

class CublasLt;

// A product prepared for fixed addresses: a launch allocates nothing and may be captured.
class Gemm {
 public:
  // Throws Error(kDevice) naming the shape when the library has no algorithm for it.
  Gemm(const CublasLt& library, const GemmArgs& args, void* workspace);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  void launch(cudaStream_t stream) const;

 private:
  const CublasLt& library_;
  GemmArgs args_;
  void* workspace_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, residual_ = nullptr, out_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

class CublasLt {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  // Throws Error(kDevice) when the library cannot be opened.
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

 private:
  friend class Gemm;
  template <class F>
  void find(F& function, const char* name);
  void require(cublasStatus_t status, const char* what) const;

  void* library_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  decltype(&cublasLtCreate) create_ = nullptr;
  decltype(&cublasLtDestroy) destroy_ = nullptr;
  decltype(&cublasLtMatmul) matmul_ = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create_ = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy_ = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set_ = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create_ = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy_ = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create_ = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy_ = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set_ = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic_ = nullptr;
};

}  // namespace tendon
