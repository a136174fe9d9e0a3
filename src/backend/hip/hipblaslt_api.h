// hipBLASLt's C interface as far as tendon uses it, declared here so that no header of ROCm is needed.
//
// Numbers and layouts are those of hipblaslt/hipblaslt.h, hipblas-common.h and hip/library_types.h. They were compared
// in ROCm/hipBLASLt 4a8a787 (1.0, ROCm 7) and in bindings generated from the headers of ROCm 6.0.2 to 7.2.3: the same
// in all of them. Before ROCm 6.0 data and compute types had other numbers; kOldestVersion keeps such a library out.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tendon::hip::blaslt {

using Status = int;  // hipblasStatus_t
constexpr Status kSuccess = 0, kInvalidValue = 3, kInternalError = 6, kNotSupported = 7;

constexpr int kRealF32 = 0, kRealBf16 = 14;  // hipDataType: HIP_R_32F, HIP_R_16BF
constexpr int kComputeF32 = 2;               // hipblasComputeType_t: HIPBLAS_COMPUTE_32F
constexpr int32_t kTransposed = 112;         // hipblasOperation_t: HIPBLAS_OP_T

// hipblasLtMatmulDescAttributes_t
constexpr int kDescTransposeA = 0;    // int32_t
constexpr int kDescEpilogue = 2;      // uint32_t
constexpr int kDescBiasPointer = 3;   // void*
constexpr int kDescBiasDataType = 4;  // int32_t
// hipblasLtEpilogue_t
constexpr uint32_t kEpilogueNone = 1, kEpilogueBias = 4, kEpilogueGelu = 32, kEpilogueGeluBias = 36;
// hipblasLtMatmulPreferenceAttributes_t
constexpr int kPreferMaxWorkspaceBytes = 1;  // uint64_t

// What hipblasLtGetVersion gives: 100000 · major + 100 · minor + patch. ROCm 6.0 came with 0.6.
constexpr int kOldestVersion = 600;

using Handle = void*;
using Desc = struct DescOpaque*;
using Layout = struct LayoutOpaque*;
using Preference = struct PreferenceOpaque*;

struct Algorithm {  // hipblasLtMatmulAlgo_t
  uint8_t data[16];
  size_t max_workspace_bytes;
};
struct HeuristicResult {  // hipblasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  size_t workspace_bytes;
  Status state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(Algorithm) == 24 && sizeof(HeuristicResult) == 56);

// name behind "hipblasLt", type; all must be there.
#define TENDON_HIPBLASLT_FUNCTIONS(F)                                                                                \
  F(GetVersion, Status (*)(Handle handle, int* version))                                                             \
  F(Create, Status (*)(Handle * handle))                                                                             \
  F(Destroy, Status (*)(Handle handle))                                                                              \
  F(MatrixLayoutCreate, Status (*)(Layout * layout, int type, uint64_t rows, uint64_t cols, int64_t stride))         \
  F(MatrixLayoutDestroy, Status (*)(Layout layout))                                                                  \
  F(MatmulDescCreate, Status (*)(Desc * desc, int compute_type, int scale_type))                                     \
  F(MatmulDescDestroy, Status (*)(Desc desc))                                                                        \
  F(MatmulDescSetAttribute, Status (*)(Desc desc, int attribute, const void* value, size_t bytes))                   \
  F(MatmulPreferenceCreate, Status (*)(Preference * preference))                                                     \
  F(MatmulPreferenceDestroy, Status (*)(Preference preference))                                                      \
  F(MatmulPreferenceSetAttribute, Status (*)(Preference preference, int attribute, const void* value, size_t bytes)) \
  F(MatmulAlgoGetHeuristic, Status (*)(Handle handle, Desc desc, Layout a, Layout b, Layout c, Layout d,             \
                                       Preference preference, int asked, HeuristicResult* results, int* found))      \
  F(Matmul, Status (*)(Handle handle, Desc desc, const void* alpha, const void* a, Layout a_layout, const void* b,   \
                       Layout b_layout, const void* beta, const void* c, Layout c_layout, void* d, Layout d_layout,  \
                       const Algorithm* algorithm, void* workspace, size_t workspace_bytes, void* stream))

}  // namespace tendon::hip::blaslt
