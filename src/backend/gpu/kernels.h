// Every launcher of this folder. A launcher only launches: no allocation, no synchronisation, no environment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/gpu/gemm.h"
#include "backend/gpu/stream.h"
#include "base/value_rule.h"
#include "ops/ops.h"

namespace tendon::gpu {

// workspace: resize_frames_workspace_bytes(a).
size_t resize_frames_workspace_bytes(const ResizeFrames& a);
void launch_resize_frames(const ResizeFrames& a, void* workspace, Stream stream);
void launch_patchify(const Patchify& a, Stream stream);
// patch_embed of bytes as one product: its rows (M, patch_depth(a)) bf16, and its weights (N, patch_depth(a)) bf16 and
// bias (N) f32, which are made once.
int64_t patch_depth(const PatchEmbed& a);
void launch_patch_rows(const PatchEmbed& a, const Tensor& rows, Stream stream);
void launch_patch_weights(const PatchEmbed& a, const Tensor& weights, const Tensor& bias, Stream stream);
void launch_add_rows(const AddRows& a, Stream stream);
// From so many rows on, norms and what makes codes give a row a wave in place of a block.
constexpr int64_t kManyRows = 2048;
// Norms may write codes where this holds: what launch_cast makes of their results in bf16.
bool norm_makes_codes(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& out);
void launch_layer_norm(const LayerNorm& a, Stream stream);
void launch_rms_norm(const RmsNorm& a, Stream stream);
void launch_ada_rms_norm(const AdaRmsNorm& a, Stream stream);
void launch_rope(const Rope& a, Stream stream);
void launch_scatter_rows(const ScatterRows& a, Stream stream);
void launch_gather_rows(const GatherRows& a, Stream stream);
void launch_residual_add(const ResidualAdd& a, Stream stream);
void launch_gated_residual(const GatedResidual& a, Stream stream);
void launch_gelu_mul(const GeluMul& a, Stream stream);
void launch_gather_prefix(const GatherPrefix& a, Stream stream);
void launch_concat_row(const ConcatRow& a, Stream stream);
void launch_cast(const Cast& a, Stream stream);
void launch_quantize_rows(const Cast& a, Stream stream);  // what launch_cast does where out has codes
void launch_euler_step(const EulerStep& a, Stream stream);
void launch_select_rows(const SelectRows& a, Stream stream);
void launch_guidance(const Guidance& a, Stream stream);

// From or to page-locked host memory, bytes a multiple of 16: sooner done than a copy engine has begun.
void launch_copy_octets(void* to, const void* from, size_t bytes, Stream stream);
// out = act(sums + bias), f32 sums (M, N): what follows a library product whose epilogue cannot do it.
void launch_bias_activation(const Tensor& sums, const Tensor& bias, Activation activation, const Tensor& out,
                            Stream stream);
// From one product (M, q + k + v) to rotated q, and rotated k and v in their cache rows: the tail of norm_qkv_rope.
void launch_rope_cache(const RopeTail& a, const Tensor& qkv, Stream stream);

// The values of a rule, for weights that no file holds. `out` is contiguous, bf16 or f32.
void launch_value_rule(const Tensor& out, const ValueRule& rule, Stream stream);

// For the tuner. Nearly normal numbers of this scale.
void launch_random(const Tensor& out, uint64_t seed, float scale, Stream stream);
// Raises *worst to the largest |a - b| / (relative · max(|a|, |b|) + absolute); NaN counts as infinite.
void launch_largest_difference(const Tensor& a, const Tensor& b, float relative, float absolute, float* worst,
                               Stream stream);

// Products of few rows (the action expert), with norm and tail in the same kernel.
bool takes_few_rows(const NormQkvRope& a);
bool takes_few_rows(const NormGateUpGelu& a);
bool takes_few_rows(const LinearResidual& a);
bool takes_few_rows(const Linear& a);
void launch_few_rows_linear(const Linear& a, Stream stream);
void launch_few_rows_norm_qkv_rope(const NormQkvRope& a, Stream stream);
void launch_few_rows_norm_gate_up_gelu(const NormGateUpGelu& a, Stream stream);
void launch_few_rows_linear_residual(const LinearResidual& a, Stream stream);

// Few queries over cached keys; needs clusters (sm_90).
bool takes_attention_cluster(const Attention& a);
void launch_attention_cluster(const Attention& a, Stream stream);

size_t attention_workspace_bytes(const Attention& a);
void launch_attention(const Attention& a, void* workspace, Stream stream);
// One wave a query row, without tensor cores: for f32, and to compare with.
void launch_plain_attention(const Attention& a, Stream stream);

}  // namespace tendon::gpu
