// Fused operations, at the granularity that fast kernels have. Each is defined by its composition from basic
// operations (compose.cc): a backend implements it or the plan expands it. Where w has e4m3 or i8 codes, what it is
// multiplied with is cast to them before, if it has none yet. With `factors` (N) f32, out has codes: the result,
// rounded to x's type, times its column's factor, with unit scales (Cast).
#pragma once

#include "ops/basic_ops.h"

namespace tendon {

// The norm in front of a projection: RMS with a gain, or adaRMS with scale and shift (then gain is undefined).
struct NormParams {
  Tensor gain, scale, shift;
  float eps = 1e-6F;
  bool adaptive() const { return scale.defined(); }
  template <class F>
  void tensors(F&& f) {
    f("gain", gain, Access::kRead), f("scale", scale, Access::kRead), f("shift", shift, Access::kRead);
  }
};

// patchify → linear → add_rows.  images (N, height, width, 3), w (W, 3·P·P) f32, positions (T, W) f32, out (N·T, W).
struct PatchEmbed {
  static constexpr const char* kName = "patch_embed";
  Tensor images, w, bias, positions, out;
  int32_t patch = 14;
  template <class F>
  void tensors(F&& f) {
    f("images", images, Access::kRead), f("w", w, Access::kRead), f("bias", bias, Access::kRead);
    f("positions", positions, Access::kRead), f("out", out, Access::kWrite);
  }
};

// layer_norm → three linears into the columns of out = [q | k | v].  x (M, W), wq, wk, wv (W, W), out (M, 3·W).
struct LayerNormQkv {
  static constexpr const char* kName = "layer_norm_qkv";
  Tensor x, gain, bias, wq, wk, wv, bq, bk, bv, out;
  float eps = 1e-6F;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("gain", gain, Access::kRead), f("bias", bias, Access::kRead);
    f("wq", wq, Access::kRead), f("wk", wk, Access::kRead), f("wv", wv, Access::kRead);
    f("bq", bq, Access::kRead), f("bk", bk, Access::kRead), f("bv", bv, Access::kRead);
    f("out", out, Access::kWrite);
  }
};

// layer_norm → linear with activation.  x (M, W), w (N, W), linear_bias (N), out (M, N).
struct LayerNormLinear {
  static constexpr const char* kName = "layer_norm_linear";
  Tensor x, gain, bias, w, linear_bias, factors = {}, out;
  float eps = 1e-6F;
  Activation activation = Activation::kNone;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("gain", gain, Access::kRead), f("bias", bias, Access::kRead);
    f("w", w, Access::kRead), f("linear_bias", linear_bias, Access::kRead);
    f("factors", factors, Access::kRead), f("out", out, Access::kWrite);
  }
};

// attention → cast to codes with unit scales.  attention as the basic operation, its out undefined, factors (heads·D),
// out (B, T, heads·D) e4m3 or i8.
struct AttentionToCodes {
  static constexpr const char* kName = "attention_to_codes";
  Attention attention;
  Tensor factors, out;
  template <class F>
  void tensors(F&& f) {
    attention.tensors(f);
    f("factors", factors, Access::kRead), f("codes", out, Access::kWrite);
  }
};

// out = residual + (x · wᵀ + bias), the linear rounded to out's type first; with a gate (N): gated_residual.
struct LinearResidual {
  static constexpr const char* kName = "linear_residual";
  Tensor x, w, bias, residual, gate, out;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("w", w, Access::kRead), f("bias", bias, Access::kRead);
    f("residual", residual, Access::kRead), f("gate", gate, Access::kRead), f("out", out, Access::kWrite);
  }
};

// h = norm(x); q = rope(h·wqᵀ); k_cache[cache_rows] = rope(h·wkᵀ); v_cache[cache_rows] = h·wvᵀ.
// x (M, W), wq (heads·D, W) or undefined (then only K and V are made), wk, wv (kv_heads·D, W), q (M, heads·D),
// k_cache, v_cache (B, capacity, kv_heads·D), positions, cache_rows (M) i32, table (positions, D) f32.
struct NormQkvRope {
  static constexpr const char* kName = "norm_qkv_rope";
  Tensor x;
  NormParams norm;
  Tensor wq, wk, wv, positions, cache_rows, table, q, k_cache, v_cache;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), norm.tensors(f);
    f("wq", wq, Access::kRead), f("wk", wk, Access::kRead), f("wv", wv, Access::kRead);
    f("positions", positions, Access::kRead), f("cache_rows", cache_rows, Access::kRead);
    f("table", table, Access::kRead), f("q", q, Access::kWrite);
    f("k_cache", k_cache, Access::kReadWrite), f("v_cache", v_cache, Access::kReadWrite);
  }
};

// h = norm(x); out = gelu_mul(h·w_gateᵀ, h·w_upᵀ).  x (M, W), w_gate, w_up (N, W), out (M, N).
struct NormGateUpGelu {
  static constexpr const char* kName = "norm_gate_up_gelu";
  Tensor x;
  NormParams norm;
  Tensor w_gate, w_up, factors = {}, out;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), norm.tensors(f);
    f("w_gate", w_gate, Access::kRead), f("w_up", w_up, Access::kRead);
    f("factors", factors, Access::kRead), f("out", out, Access::kWrite);
  }
};

}  // namespace tendon
