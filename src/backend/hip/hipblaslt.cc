#include "backend/hip/hipblaslt.h"

#include <dlfcn.h>

#include <algorithm>
#include <span>
#include <type_traits>
#include <vector>

#include "backend/hip/hipblaslt_api.h"
#include "base/check.h"

namespace tendon::hip {
namespace {

using namespace blaslt;

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
// Of ROCm 7 and of ROCm 6; the name without a number belongs to development packages.
constexpr const char* kFiles[] = {"libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"};

struct Functions {
#define TENDON_HIPBLASLT_MEMBER(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
  TENDON_HIPBLASLT_FUNCTIONS(TENDON_HIPBLASLT_MEMBER)
#undef TENDON_HIPBLASLT_MEMBER
};

void require(Status status, const char* what) {
  if (status != kSuccess) throw_device("{} failed with hipBLAS status {}", what, status);
}

class HipBlasLt final : public gpu::LibraryGemm {
 public:
  HipBlasLt(gpu::Runtime& runtime, void* library, const char* file);
  ~HipBlasLt() override;
  HipBlasLt(const HipBlasLt&) = delete;
  HipBlasLt& operator=(const HipBlasLt&) = delete;

  std::string_view name() const override { return "hipblaslt"; }
  std::string version() const override {
    return fmt::format("hipBLASLt {}.{}.{} ({})", version_ / 100000, version_ / 100 % 1000, version_ % 100, file_);
  }
  std::unique_ptr<gpu::Gemm> prepare(const gpu::GemmArgs& args, std::string_view algorithm) const override;
  std::vector<std::string> algorithms(const gpu::GemmArgs& args) const override;

  // "100102.0a1b": the library's version and the bytes that it knows the algorithm by, without zeros at the end. Only
  // the same version can make sense of them.
  std::string name_of(const Algorithm& algorithm) const;

  const Functions& call() const { return call_; }
  Handle handle() const { return handle_; }
  void* workspace() const { return workspace_; }

 private:
  gpu::Runtime& runtime_;
  const char* file_;
  Functions call_;
  Handle handle_ = nullptr;
  void* workspace_ = nullptr;
  int version_ = 0;
};

// A product as the library sees it: row-major (M, N) = x · wᵀ is, column by column, (N, M) = w · xᵀ, so w comes first
// and is transposed.
class HipBlasLtGemm final : public gpu::Gemm {
 public:
  HipBlasLtGemm(const HipBlasLt& library, const gpu::GemmArgs& args);
  ~HipBlasLtGemm() override;
  HipBlasLtGemm(const HipBlasLtGemm&) = delete;
  HipBlasLtGemm& operator=(const HipBlasLtGemm&) = delete;

  std::vector<Algorithm> preferred(int count) const;
  void take(const Algorithm& algorithm) { algorithm_ = algorithm; }
  void launch(gpu::Stream stream) const override;

 private:
  void release() noexcept;

  const HipBlasLt& library_;
  gpu::GemmArgs args_;
  Desc operation_ = nullptr;
  Layout w_ = nullptr, x_ = nullptr, residual_ = nullptr, out_ = nullptr;
  Algorithm algorithm_{};
};

HipBlasLt::HipBlasLt(gpu::Runtime& runtime, void* library, const char* file) : runtime_(runtime), file_(file) {
  const auto find = [&]<class F>(const char* function, F& to) {
    to = reinterpret_cast<F>(dlsym(library, function));
    if (to == nullptr) throw_device("{} has no function {}; ROCm 6.0 or later is needed", file, function);
  };
#define TENDON_HIPBLASLT_FIND(name, ...) find("hipblasLt" #name, call_.name);
  TENDON_HIPBLASLT_FUNCTIONS(TENDON_HIPBLASLT_FIND)
#undef TENDON_HIPBLASLT_FIND
  require(call_.Create(&handle_), "hipblasLtCreate");
  try {
    require(call_.GetVersion(handle_, &version_), "hipblasLtGetVersion");
    if (version_ < kOldestVersion) throw_device("{} is {}, older than ROCm 6.0", file, version());
    workspace_ = runtime.allocate(kWorkspaceBytes);
    if (workspace_ == nullptr) {
      throw_device("Not enough memory on the card for the workspace of hipBLASLt ({} MB). Close other programs on it.",
                   kWorkspaceBytes >> 20);
    }
  } catch (...) {
    call_.Destroy(handle_);
    throw;
  }
}

// The library itself stays open, as libamdhip64 does: it does not like to be closed.
HipBlasLt::~HipBlasLt() {
  runtime_.release(workspace_);
  call_.Destroy(handle_);
}

std::string HipBlasLt::name_of(const Algorithm& algorithm) const {
  std::span<const uint8_t> bytes = algorithm.data;
  while (!bytes.empty() && bytes.back() == 0) bytes = bytes.first(bytes.size() - 1);
  return fmt::format("{}.{:02x}", version_, fmt::join(bytes, ""));
}

std::unique_ptr<gpu::Gemm> HipBlasLt::prepare(const gpu::GemmArgs& args, std::string_view algorithm) const {
  constexpr int kAsked = 64;
  auto gemm = std::make_unique<HipBlasLtGemm>(*this, args);
  for (const Algorithm& one : gemm->preferred(algorithm.empty() ? 1 : kAsked)) {
    if (!algorithm.empty() && name_of(one) != algorithm) continue;
    gemm->take(one);
    return gemm;
  }
  return nullptr;
}

std::vector<std::string> HipBlasLt::algorithms(const gpu::GemmArgs& args) const {
  constexpr int kAsked = 64;
  std::vector<std::string> names;
  for (const Algorithm& algorithm : HipBlasLtGemm(*this, args).preferred(kAsked)) {
    if (std::string name = name_of(algorithm); std::ranges::find(names, name) == names.end())
      names.push_back(std::move(name));
  }
  return names;
}

HipBlasLtGemm::HipBlasLtGemm(const HipBlasLt& library, const gpu::GemmArgs& args) : library_(library), args_(args) {
  const int32_t type = args.out.dtype == DType::kBf16 ? kRealBf16 : kRealF32;
  const auto layout = [&](Layout& to, const Tensor& t) {
    require(library_.call().MatrixLayoutCreate(&to, type, static_cast<uint64_t>(t.cols()),
                                               static_cast<uint64_t>(t.rows()), t.row_stride),
            "describing a matrix");
  };
  const auto set = [&](int attribute, const auto& value) {
    require(library_.call().MatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)),
            "describing a product");
  };
  try {
    require(library_.call().MatmulDescCreate(&operation_, kComputeF32, kRealF32), "describing a product");
    set(kDescTransposeA, kTransposed);
    if (args.bias.defined()) {
      set(kDescEpilogue, args.gelu ? kEpilogueGeluBias : kEpilogueBias);
      const void* const bias = args.bias.data != nullptr ? args.bias.data : library_.workspace();  // while it is asked
      set(kDescBiasPointer, bias);
      set(kDescBiasDataType, type);
    } else {
      set(kDescEpilogue, args.gelu ? kEpilogueGelu : kEpilogueNone);
    }
    layout(w_, args.w);
    layout(x_, args.x);
    layout(out_, args.out);
    layout(residual_, args.residual.defined() ? args.residual : args.out);
  } catch (...) {
    release();
    throw;
  }
}

HipBlasLtGemm::~HipBlasLtGemm() { release(); }

void HipBlasLtGemm::release() noexcept {
  for (const Layout layout : {w_, x_, residual_, out_}) {
    if (layout != nullptr) library_.call().MatrixLayoutDestroy(layout);
  }
  if (operation_ != nullptr) library_.call().MatmulDescDestroy(operation_);
}

// Empty when the library knows none for this product, which is no error.
std::vector<Algorithm> HipBlasLtGemm::preferred(int count) const {
  const Functions& call = library_.call();
  Preference preference = nullptr;
  require(call.MatmulPreferenceCreate(&preference), "choosing a product");
  const uint64_t most = kWorkspaceBytes;
  std::vector<HeuristicResult> found(static_cast<size_t>(count));
  int found_count = 0;
  Status status = call.MatmulPreferenceSetAttribute(preference, kPreferMaxWorkspaceBytes, &most, sizeof(most));
  if (status == kSuccess) {
    status = call.MatmulAlgoGetHeuristic(library_.handle(), operation_, w_, x_, residual_, out_, preference, count,
                                         found.data(), &found_count);
  }
  call.MatmulPreferenceDestroy(preference);
  std::vector<Algorithm> algorithms;
  if (status != kSuccess) return algorithms;
  for (const HeuristicResult& one : std::span(found).first(static_cast<size_t>(found_count))) {
    if (one.state == kSuccess && one.workspace_bytes <= kWorkspaceBytes) algorithms.push_back(one.algorithm);
  }
  return algorithms;
}

void HipBlasLtGemm::launch(gpu::Stream stream) const {
  const float one = 1.0F;
  const float beta = args_.residual.defined() ? 1.0F : 0.0F;
  const void* const c = args_.residual.defined() ? args_.residual.data : args_.out.data;
  require(library_.call().Matmul(library_.handle(), operation_, &one, args_.w.data, w_, args_.x.data, x_, &beta, c,
                                 residual_, args_.out.data, out_, &algorithm_, library_.workspace(), kWorkspaceBytes,
                                 stream),
          "hipblasLtMatmul");
}

}  // namespace

std::unique_ptr<gpu::LibraryGemm> open_hipblaslt(gpu::Runtime& runtime, std::string& why_not) {
  for (const char* file : kFiles) {
    if (void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL))
      return std::make_unique<HipBlasLt>(runtime, library, file);
    const char* const reason = dlerror();
    if (why_not.empty()) why_not = reason == nullptr ? file : reason;
  }
  return nullptr;
}

}  // namespace tendon::hip
