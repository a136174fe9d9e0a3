#include "backend/cuda/cublaslt.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include <fmt/format.h>

#include "backend/cuda/cuda_runtime.h"
#include "base/check.h"

namespace tendon {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;

}  // namespace

// A product as the library sees it: row-major (M, N) = x · wᵀ is, column by column, (N, M) = w · xᵀ, so w comes first
// and is transposed.
class CublasLtGemm final : public gpu::Gemm {
 public:
  CublasLtGemm(const CublasLt& library, const gpu::GemmArgs& args);
  ~CublasLtGemm() override;
  CublasLtGemm(const CublasLtGemm&) = delete;
  CublasLtGemm& operator=(const CublasLtGemm&) = delete;

  std::vector<cublasLtMatmulAlgo_t> preferred(int count) const;
  // False when it does not run this product.
  bool take(const cublasLtMatmulAlgo_t& algorithm);
  bool take(std::string_view name);
  void launch(gpu::Stream stream) const override;

 private:
  const CublasLt& library_;
  gpu::GemmArgs args_;
  cudaDataType_t operand_type_, type_;  // of x and w, of all else
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, residual_ = nullptr, out_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_{};
};

std::unique_ptr<CublasLt> CublasLt::open(gpu::Runtime& runtime) {
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
    if (void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL))
      return std::unique_ptr<CublasLt>(new CublasLt(runtime, library));
  }
  return nullptr;
}

CublasLt::CublasLt(gpu::Runtime& runtime, void* library) : runtime_(runtime), library_(library) {
  find(version_, "cublasLtGetVersion");
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
  find(algo_init_, "cublasLtMatmulAlgoInit");
  find(algo_check_, "cublasLtMatmulAlgoCheck");
  find(algo_set_, "cublasLtMatmulAlgoConfigSetAttribute");
  find(algo_get_, "cublasLtMatmulAlgoConfigGetAttribute");
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

// e4m3 with a scale for each row: since 12.9, and on sm_90 alone.
bool CublasLt::multiplies(DType codes) const {
  return codes == DType::kE4m3 && version_() >= 120900 && runtime_.info().architecture == "sm_90";
}

std::string CublasLt::version() const {
  const size_t number = version_();  // 130100 for 13.1.0
  return fmt::format("cuBLASLt {}.{}.{}", number / 10000, number / 100 % 100, number % 100);
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

cudaDataType_t cuda_type(DType dtype) {
  return dtype == DType::kE4m3 ? CUDA_R_8F_E4M3 : dtype == DType::kBf16 ? CUDA_R_16BF : CUDA_R_32F;
}

// How many bytes an address is aligned to, up to 256.
uint32_t alignment_of(const Tensor& t) {
  const auto bits = reinterpret_cast<uintptr_t>(t.data) | static_cast<uintptr_t>(t.row_stride) * dtype_bytes(t.dtype);
  return static_cast<uint32_t>(std::min<uintptr_t>(256, bits & (~bits + 1)));
}

}  // namespace

CublasLtGemm::CublasLtGemm(const CublasLt& library, const gpu::GemmArgs& args)
    : library_(library), args_(args), operand_type_(cuda_type(args.w.dtype)), type_(cuda_type(args.out.dtype)) {
  const auto layout = [&](cublasLtMatrixLayout_t& to, const Tensor& t, cudaDataType_t type) {
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
  if (args.w.dtype == DType::kE4m3) {
    const int32_t by_row = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, by_row);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, by_row);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.w.scales);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.x.scales);
  }
  layout(w_, args.w, operand_type_);
  layout(x_, args.x, operand_type_);
  layout(out_, args.out, type_);
  layout(residual_, args.residual.defined() ? args.residual : args.out, type_);
}

std::vector<cublasLtMatmulAlgo_t> CublasLtGemm::preferred(int count) const {
  cublasLtMatmulPreference_t preference = nullptr;
  library_.require(library_.preference_create_(&preference), "choosing a product");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    library_.require(library_.preference_set_(preference, attribute, &value, sizeof(value)), "choosing a product");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // Parts of K are summed in f32: in the type of the result, the sum would be rounded more than once.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(args_.w));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(args_.x));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
         alignment_of(args_.residual.defined() ? args_.residual : args_.out));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(args_.out));
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(count));
  int found_count = 0;
  const cublasStatus_t status = library_.heuristic_(library_.handle_, operation_, w_, x_, residual_, out_, preference,
                                                    count, found.data(), &found_count);
  library_.preference_destroy_(preference);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  if (status != CUBLAS_STATUS_SUCCESS) return algorithms;
  for (int i = 0; i < found_count; ++i) {
    if (found[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
      algorithms.push_back(found[static_cast<size_t>(i)].algo);
  }
  return algorithms;
}

bool CublasLtGemm::take(const cublasLtMatmulAlgo_t& algorithm) {
  algorithm_ = algorithm;
  cublasLtMatmulHeuristicResult_t checked{};
  return library_.algo_check_(library_.handle_, operation_, w_, x_, residual_, out_, &algorithm_, &checked) ==
             CUBLAS_STATUS_SUCCESS &&
         checked.state == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= kWorkspaceBytes;
}

// The numbers of an algorithm's name, in order; the first is its id. Cluster and inner shape have two bytes.
struct AlgorithmField {
  cublasLtMatmulAlgoConfigAttributes_t attribute;
  size_t bytes;
};
constexpr AlgorithmField kAlgorithmFields[] = {
    {CUBLASLT_ALGO_CONFIG_ID, 4},
    {CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
    {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
    {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
    {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
    {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
    {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
    {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
    {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
};

bool CublasLtGemm::take(std::string_view name) {
  std::vector<uint32_t> numbers;
  for (const char* at = name.data(); at < name.data() + name.size();) {
    const auto [end, error] = std::from_chars(at, name.data() + name.size(), numbers.emplace_back());
    if (error != std::errc()) return false;
    at = end + 1;  // the dot
  }
  if (numbers.size() != std::size(kAlgorithmFields)) return false;
  cublasLtMatmulAlgo_t algorithm{};
  if (library_.algo_init_(library_.handle_, CUBLAS_COMPUTE_32F, CUDA_R_32F, operand_type_, operand_type_, type_, type_,
                          static_cast<int>(numbers[0]), &algorithm) != CUBLAS_STATUS_SUCCESS) {
    return false;
  }
  for (size_t i = 1; i < numbers.size(); ++i) {  // little-endian: the low bytes come first
    if (library_.algo_set_(&algorithm, kAlgorithmFields[i].attribute, &numbers[i], kAlgorithmFields[i].bytes) !=
        CUBLAS_STATUS_SUCCESS) {
      return false;
    }
  }
  return take(algorithm);
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

std::unique_ptr<gpu::Gemm> CublasLt::prepare(const gpu::GemmArgs& args, std::string_view algorithm) const {
  auto gemm = std::make_unique<CublasLtGemm>(*this, args);
  if (!algorithm.empty()) return gemm->take(algorithm) ? std::move(gemm) : nullptr;
  const std::vector<cublasLtMatmulAlgo_t> preferred = gemm->preferred(1);
  return !preferred.empty() && gemm->take(preferred[0]) ? std::move(gemm) : nullptr;
}

std::vector<std::string> CublasLt::algorithms(const gpu::GemmArgs& args) const {
  constexpr int kRequested = 64;
  std::vector<std::string> names;
  for (const cublasLtMatmulAlgo_t& algorithm : CublasLtGemm(*this, args).preferred(kRequested)) {
    std::string name;
    for (const AlgorithmField& field : kAlgorithmFields) {
      uint32_t number = 0;
      size_t written = 0;
      require(algo_get_(&algorithm, field.attribute, &number, field.bytes, &written), "reading an algorithm");
      name += (name.empty() ? "" : ".") + std::to_string(number);
    }
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

}  // namespace tendon
