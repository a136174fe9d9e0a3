// Matrix products through cuBLASLt, opened at run time: the binary starts without it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <cublasLt.h>

#include "backend/gpu/library_gemm.h"
#include "backend/gpu/runtime.h"

namespace tendon {

class CublasLt final : public gpu::LibraryGemm {
 public:
  // Null when the library cannot be opened. Takes its workspace from the runtime, which must outlive it. Throws
  // Error(kDevice) when the library is there and does not work.
  static std::unique_ptr<CublasLt> open(gpu::Runtime& runtime);
  ~CublasLt() override;
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  std::string_view name() const override { return "cublaslt"; }
  std::string version() const override;
  bool multiplies(DType codes) const override;
  std::unique_ptr<gpu::Gemm> prepare(const gpu::GemmArgs& args, std::string_view algorithm = {}) const override;
  std::vector<std::string> algorithms(const gpu::GemmArgs& args) const override;

 private:
  friend class CublasLtGemm;
  CublasLt(gpu::Runtime& runtime, void* library);
  template <class F>
  void find(F& function, const char* name);
  void require(cublasStatus_t status, const char* what) const;

  gpu::Runtime& runtime_;
  void* workspace_ = nullptr;
  void* library_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  decltype(&cublasLtGetVersion) version_ = nullptr;
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
  decltype(&cublasLtMatmulAlgoInit) algo_init_ = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) algo_check_ = nullptr;
  decltype(&cublasLtMatmulAlgoConfigSetAttribute) algo_set_ = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algo_get_ = nullptr;
};

}  // namespace tendon
