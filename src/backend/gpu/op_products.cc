#include "backend/gpu/op_products.h"

#include "backend/gpu/kernels.h"

namespace tendon::gpu {
namespace {

constexpr size_t kAlign = 256;
size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

Launch launch_of(const LayerNorm& norm) {
  return [=](Stream stream) { launch_layer_norm(norm, stream); };
}
Launch launch_of(const Tensor& x, const NormParams& norm, const Tensor& out) {
  if (norm.adaptive()) {
    const AdaRmsNorm ada{.x = x, .scale = norm.scale, .shift = norm.shift, .out = out, .eps = norm.eps};
    return [=](Stream stream) { launch_ada_rms_norm(ada, stream); };
  }
  const RmsNorm rms{.x = x, .gain = norm.gain, .out = out, .eps = norm.eps};
  return [=](Stream stream) { launch_rms_norm(rms, stream); };
}
bool makes_codes(const Tensor& x, const NormParams& norm, const Tensor& rows) {
  return norm.adaptive() ? norm_makes_codes(x, norm.scale, norm.shift, rows) : norm_makes_codes(x, norm.gain, {}, rows);
}

}  // namespace

Tensor Scratch::take(DType dtype, const Shape& shape) {
  Tensor t(dtype, shape, base_ == nullptr ? nullptr : base_ + used_);
  used_ += aligned(buffer_bytes(dtype, shape));
  if (base_ != nullptr) bind(t, shape, t.data);
  return t;
}

Tensor operand_rows(const Tensor& x, const Tensor& w, Scratch& scratch) {
  return is_scaled(w.dtype) && x.dtype != w.dtype ? scratch.take(w.dtype, {x.rows(), x.cols()}) : x;
}

Product without_codes(const Product& p, DType type, Scratch& scratch) {
  if (!p.factors.defined()) return p;
  Product plain = p;
  plain.factors = {};
  plain.out = scratch.take(type, {p.out.rows(), p.out.cols()});
  return plain;
}

Product product_in(const LinearResidual& a, const Tensor& rows) {
  return {.x = rows, .w = a.w, .bias = a.bias, .residual = a.residual, .gate = a.gate, .out = a.out};
}
Product product_in(const LayerNormLinear& a, const Tensor& rows, Scratch&) {
  return {.x = rows, .w = a.w, .bias = a.linear_bias, .factors = a.factors, .out = a.out, .activation = a.activation};
}
Product product_in(const LayerNormQkv& a, const Tensor& rows, Scratch&) {
  return {.x = rows, .w = *stacked({a.wq, a.wk, a.wv}), .bias = *stacked({a.bq, a.bk, a.bv}), .out = a.out};
}
Product product_in(const NormGateUpGelu& a, const Tensor& rows, Scratch&) {
  return {.x = rows, .w = a.w_gate, .up = a.w_up, .factors = a.factors, .out = a.out};
}
Product product_in(const NormQkvRope& a, const Tensor& rows, Scratch& scratch) {
  const Tensor w = *stacked({a.wq, a.wk, a.wv});
  return {.x = rows,
          .w = w,
          .out = scratch.take(a.x.dtype, {a.x.rows(), w.rows()}),
          .rope = {.positions = a.positions,
                   .cache_rows = a.cache_rows,
                   .table = a.table,
                   .q = a.q,
                   .k_cache = a.k_cache,
                   .v_cache = a.v_cache}};
}

Launch norm_launch(const LayerNormLinear& a, const Tensor& h) {
  return launch_of({.x = a.x, .gain = a.gain, .bias = a.bias, .out = h, .eps = a.eps});
}
Launch norm_launch(const LayerNormQkv& a, const Tensor& h) {
  return launch_of({.x = a.x, .gain = a.gain, .bias = a.bias, .out = h, .eps = a.eps});
}
Launch norm_launch(const NormGateUpGelu& a, const Tensor& h) { return launch_of(a.x, a.norm, h); }
Launch norm_launch(const NormQkvRope& a, const Tensor& h) { return launch_of(a.x, a.norm, h); }
bool norm_makes_codes(const LayerNormLinear& a, const Tensor& rows) {
  return norm_makes_codes(a.x, a.gain, a.bias, rows);
}
bool norm_makes_codes(const LayerNormQkv& a, const Tensor& rows) { return norm_makes_codes(a.x, a.gain, a.bias, rows); }
bool norm_makes_codes(const NormGateUpGelu& a, const Tensor& rows) { return makes_codes(a.x, a.norm, rows); }
bool norm_makes_codes(const NormQkvRope& a, const Tensor& rows) { return makes_codes(a.x, a.norm, rows); }

}  // namespace tendon::gpu
