#include "trace/op_class.h"

#include <gtest/gtest.h>

namespace tendon::trace {
namespace {

TEST(OpClass, TellsKernelsOfLibrariesAndCompilersByName) {
  const std::pair<const char*, OpClass> cases[] = {
      {"nvjet_tst_128x256_64x4_2x1_v_bz_TNT", OpClass::kGemm},
      {"sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", OpClass::kGemm},
      {"void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>(cutlass::Params)", OpClass::kGemm},
      {"Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x128x64", OpClass::kGemm},
      {"void cublasLt::splitKreduce_kernel<32, 16, int, float>", OpClass::kGemm},
      {"aten::addmm", OpClass::kGemm},
      {"void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<256, 64, 128, 4, cutlass::bfloat16_t> >",
       OpClass::kAttention},
      {"fmha_cutlassF_bf16_aligned_64x64_rf_sm80", OpClass::kAttention},
      {"void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false>", OpClass::kAttention},
      {"triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", OpClass::kNorm},
      {"triton_poi_fused_cat_cos_mul_sin_sub_4", OpClass::kRope},
      {"triton_poi_fused_gelu_mul_7", OpClass::kActivation},
      {"triton_poi_fused_cat_clone_2", OpClass::kCopy},
      {"triton_poi_fused_add_1", OpClass::kOther},
      {"triton_poi_fused__scaled_dot_product_cudnn_attention__to_copy__unsafe_view_add_cat_clone_mul_3",
       OpClass::kOther},
      {"triton_tem_fused_flex_attention_0", OpClass::kAttention},
      {"cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x256_4x1x1", OpClass::kAttention},
      {"void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>", OpClass::kNorm},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>", OpClass::kActivation},
      {"void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>", OpClass::kCopy},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >", OpClass::kFill},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >", OpClass::kOther},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", OpClass::kAttention},
      {"void tendon::gpu::denoise::loop_kernel<true>(tendon::gpu::denoise::LoopArgs)", OpClass::kLoop},
      {"tendon::gpu::denoise::pack_keys_kernel(tendon::gpu::denoise::Caches, int const*, int)", OpClass::kCopy},
      {"", OpClass::kOther},
  };
  for (const auto& [name, expected] : cases) {
    EXPECT_EQ(op_class_name(classify(name)), op_class_name(expected)) << name;
  }
}

TEST(OpClass, OfOperationsOfOurOwnFollowsWhatTakesTheirTime) {
  const std::pair<const char*, OpClass> cases[] = {
      {"norm_qkv_rope", OpClass::kGemm},   {"norm_gate_up_gelu", OpClass::kGemm},
      {"linear_residual", OpClass::kGemm}, {"patch_embed", OpClass::kGemm},
      {"attention", OpClass::kAttention},  {"denoise_loop", OpClass::kLoop},
      {"rms_norm", OpClass::kNorm},        {"ada_rms_norm", OpClass::kNorm},
      {"gelu_mul", OpClass::kActivation},  {"rope", OpClass::kRope},
      {"scatter_rows", OpClass::kCopy},    {"cast", OpClass::kCopy},
      {"euler_step", OpClass::kOther},     {"guidance", OpClass::kOther},
      {"select_rows", OpClass::kCopy},     {"gated_residual", OpClass::kOther},
      {"resize_frames", OpClass::kOther}};
  for (const auto& [name, expected] : cases) {
    EXPECT_EQ(op_class_name(classify_operation(name)), op_class_name(expected)) << name;
  }
}

TEST(OpClass, CountsOneAttentionKernelALayer) {
  EXPECT_TRUE(is_main_attention("flash_fwd_splitkv_kernel<256>"));
  EXPECT_FALSE(is_main_attention("flash_fwd_splitkv_combine_kernel<256>"));
  EXPECT_FALSE(is_main_attention("softmax_warp_forward"));
  EXPECT_TRUE(is_main_attention("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x256_4x1x1"));
  // Prepares queries for it, several times a layer.
  EXPECT_FALSE(is_main_attention("triton_poi_fused__scaled_dot_product_cudnn_attention__to_copy_add_cat_2"));
  EXPECT_TRUE(is_softmax("cunn_SoftMaxForward"));
}

}  // namespace
}  // namespace tendon::trace
