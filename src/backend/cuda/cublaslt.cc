#include "backend/cuda/cublaslt.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>

#include "backend/cuda/cuda_runtime.h"
#include "base/check.h"

namespace tendon {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

}  // namespace

class CublasLtGemm final : public gpu::Gemm {
 public:
  CublasLtGemm(const CublasLt& library, const gpu::GemmArgs& args);
  ~CublasLtGemm() override;
  CublasLtGemm(const CublasLtGemm&) = delete;
  CublasLtGemm& operator=(const CublasLtGemm&) = delete;

  void launch(gpu::Stream stream) const override;

 private:
  const CublasLt& library_;
  gpu::GemmArgs args_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, residual_ = nullptr, out_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

CublasLt::CublasLt(gpu::Runtime& runtime) : runtime_(runtime) {
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
    library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library_ != nullptr) break;
  }
  if (library_ == nullptr) {
    throw_device(
        "The library cuBLASLt (libcublasLt.so.13 or .12) cannot be opened: {}. Install the CUDA libraries, or put "
        "their folder into LD_LIBRARY_PATH.",
        dlerror());
  }
  find(create_, "cublasLtCreate");
  find(destroy_, "cublasLtDestroy");
  find(matmul_, "cublasLtMatmul");
  find(desc_create_, "cublasLtMatmulDescCreate");
  find(desc_destroy_, "cublasLtMatmulDescDestroy");
  find(desc_set_, "cublasLtMatmulDescSetAttribute");
  find(layout_create_, "cublasLtMatrixLayoutCreate");
  find(layout_destroy_, "cublasLtMatrixLayoutDestroy");
  find(preference_create_, "cublasLtMatmulPreferenceCreate");
  find(preference_destroy_, "cublasLtMatmulPreferenceDestroy");
  find(preference_set_, "cublasLtMatmulPreferenceSetAttribute");
  find(heuristic_, "cublasLtMatmulAlgoGetHeuristic");
  require(create_(&handle_), "cublasLtCreate");
  workspace_ = runtime.allocate(kWorkspaceBytes);
  if (workspace_ == nullptr) {
    destroy_(handle_);
    throw_device("Not enough memory on the card for the workspace of cuBLASLt ({} MB). Close other programs on it.",
                 kWorkspaceBytes >> 20);
  }
}

CublasLt::~CublasLt() {
  runtime_.release(workspace_);
  if (handle_ != nullptr) destroy_(handle_);
  if (library_ != nullptr) dlclose(library_);
}

template <class F>
void CublasLt::find(F& function, const char* name) {
  function = reinterpret_cast<F>(dlsym(library_, name));
  if (function == nullptr) throw_device("cuBLASLt has no function {}; a newer CUDA release is needed.", name);
}

void CublasLt::require(cublasStatus_t status, const char* what) const {
  if (status != CUBLAS_STATUS_SUCCESS) throw_device("{} failed with cuBLAS status {}", what, static_cast<int>(status));
}

namespace {

// How many bytes an address is aligned to, up to 256.
uint32_t alignment_of(const Tensor& t) {
  const auto bits = reinterpret_cast<uintptr_t>(t.data) | static_cast<uintptr_t>(t.row_stride) * dtype_bytes(t.dtype);
  return static_cast<uint32_t>(std::min<uintptr_t>(256, bits & (~bits + 1)));
}

}  // namespace

// Row-major (M, N) = x · wᵀ is, column by column, (N, M) = w · xᵀ: w comes first and is transposed.
CublasLtGemm::CublasLtGemm(const CublasLt& library, const gpu::GemmArgs& args) : library_(library), args_(args) {
  const cudaDataType_t type = args.out.dtype == DType::kBf16 ? CUDA_R_16BF : CUDA_R_32F;
  const auto layout = [&](cublasLtMatrixLayout_t& to, const Tensor& t) {
    library_.require(library_.layout_create_(&to, type, static_cast<uint64_t>(t.cols()),
                                             static_cast<uint64_t>(t.rows()), t.row_stride),
                     "describing a matrix");
  };
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    library_.require(library_.desc_set_(operation_, attribute, &value, sizeof(value)), "describing a product");
  };
  library_.require(library_.desc_create_(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product");
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  cublasLtEpilogue_t epilogue = args.gelu ? CUBLASLT_EPILOGUE_GELU : CUBLASLT_EPILOGUE_DEFAULT;
  if (args.bias.defined()) {
    epilogue = args.gelu ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias.data);
  }
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  layout(w_, args.w);
  layout(x_, args.x);
  layout(out_, args.out);
  layout(residual_, args.residual.defined() ? args.residual : args.out);

  cublasLtMatmulPreference_t preference = nullptr;
  library_.require(library_.preference_create_(&preference), "choosing a product");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    library_.require(library_.preference_set_(preference, attribute, &value, sizeof(value)), "choosing a product");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(args.w));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(args.x));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(args.residual.defined() ? args.residual : args.out));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(args.out));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      library_.heuristic_(library_.handle_, operation_, w_, x_, residual_, out_, preference, 1, &found, &count);
  library_.preference_destroy_(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    throw_device("cuBLASLt has no algorithm for x {} · w {} in {} (status {})", to_string(args.x.shape),
                 to_string(args.w.shape), dtype_name(args.out.dtype), static_cast<int>(status));
  }
  algorithm_ = found.algo;
}

CublasLtGemm::~CublasLtGemm() {
  if (operation_ != nullptr) library_.desc_destroy_(operation_);
  for (cublasLtMatrixLayout_t layout : {w_, x_, residual_, out_}) {
    if (layout != nullptr) library_.layout_destroy_(layout);
  }
}

void CublasLtGemm::launch(gpu::Stream stream) const {
  const float one = 1.0F;
  const float beta = args_.residual.defined() ? 1.0F : 0.0F;
  const void* const c = args_.residual.defined() ? args_.residual.data : args_.out.data;
  library_.require(
      library_.matmul_(library_.handle_, operation_, &one, args_.w.data, w_, args_.x.data, x_, &beta, c, residual_,
                       args_.out.data, out_, &algorithm_, library_.workspace_, kWorkspaceBytes, cuda_stream(stream)),
      "cublasLtMatmul");
}

std::unique_ptr<gpu::Gemm> CublasLt::prepare(const gpu::GemmArgs& args) const {
  return std::make_unique<CublasLtGemm>(*this, args);
}

}  // namespace tendon
