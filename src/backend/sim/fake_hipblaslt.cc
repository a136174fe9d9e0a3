// A libhipblaslt for tests: two algorithms for every product, computed by plain loops on the fake libamdhip64. It holds
// its callers to the documented interface, and like the real one needs memory of its own when it is first used, which
// no capture may hold. The environment variable TENDON_FAKE_HIPBLASLT orders one fault: no-create, old (a version
// before ROCm 6), no-algorithm, no-matmul.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>

#include "backend/hip/hipblaslt_api.h"
#include "backend/sim/library_product.h"

using namespace tendon;
using namespace tendon::hip::blaslt;

#define FAKE extern "C" __attribute__((visibility("default")))

// Of the fake libamdhip64.
extern "C" int hipMalloc(void** memory, size_t bytes);
extern "C" int hipFree(void* memory);
extern "C" int tendon_fake_hip_submit(void* stream, const std::function<void()>& work);

namespace {

bool ordered(std::string_view fault) {
  const char* const given = std::getenv("TENDON_FAKE_HIPBLASLT");
  return given != nullptr && given == fault;
}

struct FakeHandle {
  void* memory = nullptr;     // since its creation
  void* first_use = nullptr;  // since the first product
};
struct FakeLayout {
  int type;
  uint64_t rows, cols;
  int64_t stride;
};
struct FakeDesc {
  int32_t transpose_a = 111;
  uint32_t epilogue = kEpilogueNone;
  void* bias = nullptr;
  int32_t bias_type = 255;
};
struct FakePreference {
  uint64_t most_workspace_bytes = 0;
};

constexpr uint8_t kAlgorithms[] = {0x0a, 0x1b};
constexpr size_t kWorkspaceBytes = 4096;  // that an algorithm says it needs

FakeLayout& layout_of(Layout layout) { return *reinterpret_cast<FakeLayout*>(layout); }
FakeDesc& desc_of(Desc desc) { return *reinterpret_cast<FakeDesc*>(desc); }

// The row-major matrix (cols, rows) that a column-major layout is.
Tensor tensor_of(const FakeLayout& layout, const void* data) {
  Tensor t(layout.type == kRealBf16 ? DType::kBf16 : DType::kF32,
           {static_cast<int64_t>(layout.cols), static_cast<int64_t>(layout.rows)}, const_cast<void*>(data));
  t.row_stride = layout.stride;
  return t;
}

// Nothing when the product makes no sense.
std::optional<gpu::GemmArgs> product(const FakeDesc& desc, const void* a, const FakeLayout& a_layout, const void* b,
                                     const FakeLayout& b_layout, float beta, const void* c, const FakeLayout& c_layout,
                                     void* d, const FakeLayout& d_layout) {
  const bool fits = desc.transpose_a == kTransposed && a_layout.rows == b_layout.rows &&
                    d_layout.rows == a_layout.cols && d_layout.cols == b_layout.cols &&
                    c_layout.rows == d_layout.rows && c_layout.cols == d_layout.cols;
  const bool one_type = a_layout.type == b_layout.type && a_layout.type == c_layout.type &&
                        a_layout.type == d_layout.type && (a_layout.type == kRealBf16 || a_layout.type == kRealF32);
  const bool has_bias = (desc.epilogue & kEpilogueBias) != 0;
  const bool known = desc.epilogue == kEpilogueNone || desc.epilogue == kEpilogueBias ||
                     desc.epilogue == kEpilogueGelu || desc.epilogue == kEpilogueGeluBias;
  if (!fits || !one_type || !known || (beta != 0 && beta != 1)) return {};
  if (has_bias && (desc.bias == nullptr || desc.bias_type != d_layout.type)) return {};
  gpu::GemmArgs args;
  args.x = tensor_of(b_layout, b);
  args.w = tensor_of(a_layout, a);
  args.out = tensor_of(d_layout, d);
  if (has_bias) args.bias = Tensor(args.out.dtype, {1, args.out.cols()}, desc.bias);
  if (beta != 0) args.residual = tensor_of(c_layout, c);
  args.gelu = (desc.epilogue & kEpilogueGelu) != 0;
  return args;
}

}  // namespace

FAKE Status hipblasLtCreate(Handle* handle) {
  if (ordered("no-create")) return kInternalError;
  auto* const made = new FakeHandle;
  if (hipMalloc(&made->memory, 256) != 0) {
    delete made;
    return kInternalError;
  }
  *handle = made;
  return kSuccess;
}
FAKE Status hipblasLtDestroy(Handle handle) {
  auto* const made = static_cast<FakeHandle*>(handle);
  hipFree(made->memory);
  if (made->first_use != nullptr) hipFree(made->first_use);
  delete made;
  return kSuccess;
}
FAKE Status hipblasLtGetVersion(Handle, int* version) {
  *version = ordered("old") ? 500 : 100102;
  return kSuccess;
}

FAKE Status hipblasLtMatrixLayoutCreate(Layout* layout, int type, uint64_t rows, uint64_t cols, int64_t stride) {
  if (stride < static_cast<int64_t>(rows)) return kInvalidValue;
  *layout = reinterpret_cast<Layout>(new FakeLayout{type, rows, cols, stride});
  return kSuccess;
}
FAKE Status hipblasLtMatrixLayoutDestroy(Layout layout) {
  delete &layout_of(layout);
  return kSuccess;
}
FAKE Status hipblasLtMatmulDescCreate(Desc* desc, int compute_type, int scale_type) {
  if (compute_type != kComputeF32 || scale_type != kRealF32) return kNotSupported;
  *desc = reinterpret_cast<Desc>(new FakeDesc);
  return kSuccess;
}
FAKE Status hipblasLtMatmulDescDestroy(Desc desc) {
  delete &desc_of(desc);
  return kSuccess;
}
FAKE Status hipblasLtMatmulDescSetAttribute(Desc desc, int attribute, const void* value, size_t bytes) {
  FakeDesc& to = desc_of(desc);
  const auto set = [&](auto& field) {
    if (bytes != sizeof(field)) return kInvalidValue;
    std::memcpy(&field, value, bytes);
    return kSuccess;
  };
  switch (attribute) {
    case kDescTransposeA:
      return set(to.transpose_a);
    case kDescEpilogue:
      return set(to.epilogue);
    case kDescBiasPointer:
      return set(to.bias);
    case kDescBiasDataType:
      return set(to.bias_type);
    default:
      return kInvalidValue;
  }
}
FAKE Status hipblasLtMatmulPreferenceCreate(Preference* preference) {
  *preference = reinterpret_cast<Preference>(new FakePreference);
  return kSuccess;
}
FAKE Status hipblasLtMatmulPreferenceDestroy(Preference preference) {
  delete reinterpret_cast<FakePreference*>(preference);
  return kSuccess;
}
FAKE Status hipblasLtMatmulPreferenceSetAttribute(Preference preference, int attribute, const void* value,
                                                  size_t bytes) {
  if (attribute != kPreferMaxWorkspaceBytes || bytes != sizeof(uint64_t)) return kInvalidValue;
  std::memcpy(&reinterpret_cast<FakePreference*>(preference)->most_workspace_bytes, value, bytes);
  return kSuccess;
}

// Those that it has, and where there is room one that it takes back, as the real library may.
FAKE Status hipblasLtMatmulAlgoGetHeuristic(Handle, Desc desc, Layout a, Layout b, Layout c, Layout d,
                                            Preference preference, int asked, HeuristicResult* results, int* found) {
  *found = 0;
  if (asked <= 0) return kInvalidValue;
  if (ordered("no-algorithm")) return kNotSupported;
  if (!product(desc_of(desc), nullptr, layout_of(a), nullptr, layout_of(b), 1, nullptr, layout_of(c), nullptr,
               layout_of(d))) {
    return kInvalidValue;
  }
  const uint64_t most = reinterpret_cast<FakePreference*>(preference)->most_workspace_bytes;
  if (most < kWorkspaceBytes) return kSuccess;
  for (const uint8_t id : kAlgorithms) {
    if (*found == asked) return kSuccess;
    results[(*found)++] = {.algorithm = {.data = {id, 0, id}, .max_workspace_bytes = most},
                           .workspace_bytes = kWorkspaceBytes,
                           .state = kSuccess,
                           .waves = 1,
                           .reserved = {}};
  }
  if (*found < asked)
    results[(*found)++] = {.algorithm = {}, .workspace_bytes = 0, .state = kNotSupported, .waves = 0, .reserved = {}};
  return kSuccess;
}

FAKE Status hipblasLtMatmul(Handle handle, Desc desc, const void* alpha, const void* a, Layout a_layout, const void* b,
                            Layout b_layout, const void* beta, const void* c, Layout c_layout, void* d, Layout d_layout,
                            const Algorithm* algorithm, void* workspace, size_t workspace_bytes, void* stream) {
  constexpr Status kExecutionFailed = 5;
  if (ordered("no-matmul")) return kExecutionFailed;
  auto& made = *static_cast<FakeHandle*>(handle);
  if (made.first_use == nullptr && hipMalloc(&made.first_use, 256) != 0) return kExecutionFailed;
  const uint8_t id = algorithm->data[0];
  const bool known = (id == kAlgorithms[0] || id == kAlgorithms[1]) && algorithm->data[2] == id;
  if (!known || workspace == nullptr || workspace_bytes < kWorkspaceBytes || *static_cast<const float*>(alpha) != 1)
    return kInvalidValue;
  const std::optional<gpu::GemmArgs> args =
      product(desc_of(desc), a, layout_of(a_layout), b, layout_of(b_layout), *static_cast<const float*>(beta), c,
              layout_of(c_layout), d, layout_of(d_layout));
  if (!args) return kInvalidValue;
  return tendon_fake_hip_submit(stream, [args = *args] { sim::multiply(args); }) == 0 ? kSuccess : kExecutionFailed;
}
