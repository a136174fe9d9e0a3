// One Gemma block, shared by the prefix (language model) and the action expert.
#include <cmath>

#include "model/forward.h"
#include "ops/compose.h"

namespace tendon {
namespace {

NormParams norm_params(const NormWeights& weights, const Modulation& modulation, float eps) {
  return {.gain = weights.gain, .scale = modulation.scale, .shift = modulation.shift, .eps = eps};
}

Tensor projected(Recorder& r, const Tensor& x, const Tensor& w) {
  const Tensor y = r.temporary(x.dtype, {x.rows(), w.rows()});
  r.add(Linear{.x = operand(r, x, w), .w = w, .bias = {}, .out = y});
  return y;
}

Tensor selected(Recorder& r, const Tensor& x, const Tensor& frozen_x, const Tensor& frozen) {
  const Tensor out = r.temporary(x.dtype, x.shape);
  r.add(SelectRows{.x = x, .y = frozen_x, .chosen = frozen, .out = out});
  return out;
}

// norm_qkv_rope with two modulations, part by part.
void record_two_time_qkv(Recorder& r, const ForwardSpec& spec, const NormQkvRope& a, const Modulation& modulation) {
  const Tensor h = record_modulated_norm(r, a.x, modulation, spec.config.eps);
  r.add(Rope{.x = projected(r, h, a.wq), .positions = a.positions, .table = a.table, .out = a.q});
  const Tensor k = projected(r, h, a.wk);
  const Tensor rotated = r.temporary(k.dtype, k.shape);
  r.add(Rope{.x = k, .positions = a.positions, .table = a.table, .out = rotated});
  r.add(ScatterRows{.x = rotated, .rows = a.cache_rows, .out = a.k_cache});
  r.add(ScatterRows{.x = projected(r, h, a.wv), .rows = a.cache_rows, .out = a.v_cache});
}

// linear_residual with two gates.
Tensor record_two_time_residual(Recorder& r, const Tensor& x, const Tensor& w, const Tensor& residual,
                                const Modulation& modulation) {
  const Tensor y = projected(r, x, w);
  const auto gated = [&](const Tensor& gate) {
    const Tensor out = r.temporary(residual.dtype, residual.shape);
    r.add(GatedResidual{.x = residual, .y = y, .gate = gate, .out = out});
    return out;
  };
  const Tensor moving = gated(modulation.gate);
  return selected(r, moving, gated(modulation.frozen_gate), modulation.frozen);
}

// norm_gate_up_gelu with two modulations.
Tensor record_two_time_mlp(Recorder& r, const ForwardSpec& spec, const Tensor& x, const GemmaLayerWeights& layer,
                           const Modulation& modulation) {
  const Tensor h = record_modulated_norm(r, x, modulation, spec.config.eps);
  const Tensor gate = projected(r, h, layer.gate);
  const Tensor out = r.temporary(gate.dtype, gate.shape);
  r.add(GeluMul{.gate = gate, .up = projected(r, h, layer.up), .out = out});
  return out;
}

}  // namespace

Tensor operand_buffer(Recorder& r, DType activation, int64_t rows, const Tensor& w, const Tensor& factors) {
  return r.temporary(factors.defined() ? w.dtype : activation, {rows, w.cols()});
}

void record_attention(Recorder& r, const Attention& attention, const Tensor& factors, const Tensor& operand) {
  const Tensor out = operand.reshaped(attention.q.shape);
  if (factors.defined()) {
    r.add(AttentionToCodes{.attention = attention, .factors = factors, .out = out});
    return;
  }
  Attention plain = attention;
  plain.out = out;
  r.add(plain);
}

Tensor record_modulated_norm(Recorder& r, const Tensor& x, const Modulation& modulation, float eps) {
  const auto norm = [&](const Tensor& scale, const Tensor& shift) {
    const Tensor out = r.temporary(x.dtype, x.shape);
    r.add(AdaRmsNorm{.x = x, .scale = scale, .shift = shift, .out = out, .eps = eps});
    return out;
  };
  const Tensor moving = norm(modulation.scale, modulation.shift);
  if (!modulation.frozen.defined()) return moving;
  return selected(r, moving, norm(modulation.frozen_scale, modulation.frozen_shift), modulation.frozen);
}

Tensor record_gemma_layer(Recorder& r, const ForwardSpec& spec, const GemmaLayerWeights& layer, const Tensor& x,
                          const GemmaContext& context, int64_t index, const Modulation& attention_mod,
                          const Modulation& mlp_mod, bool kv_only) {
  const ModelConfig& c = spec.config;
  const int64_t batch = spec.bucket.batch;
  const int64_t rows = x.rows();
  const auto temporary = [&](int64_t cols) { return r.temporary(spec.activation, {rows, cols}); };
  const Tensor& k_cache = context.k_cache[static_cast<size_t>(index)];  // (B, C, kv_heads·D)
  const Tensor& v_cache = context.v_cache[static_cast<size_t>(index)];
  const Tensor q = kv_only ? Tensor{} : temporary(c.q_width());  // (B·rows, heads·D)

  const bool two_times = attention_mod.frozen.defined();
  const NormQkvRope qkv{.x = x,
                        .norm = norm_params(layer.input_norm, attention_mod, c.eps),
                        .wq = kv_only ? Tensor{} : layer.q,
                        .wk = layer.k,
                        .wv = layer.v,
                        .positions = context.positions,
                        .cache_rows = context.cache_rows,
                        .table = spec.tables.rope,
                        .q = q,
                        .k_cache = k_cache,
                        .v_cache = v_cache};
  if (two_times) {
    record_two_time_qkv(r, spec, qkv, attention_mod);
  } else {
    r.add(qkv);
  }
  if (kv_only) return {};

  const auto keep = [&](const Tensor& value, const char* operand) {
    if (spec.operand_taps && context.keeps_operands) r.keep(value, operand_name("prefix", operand, index));
  };
  const Tensor attended =
      operand_buffer(r, spec.activation, rows, layer.o, layer.factors.attended);  // (B·rows, heads·D)
  const Attention attention{.q = q.reshaped({batch, rows / batch, q.cols()}),
                            .k = k_cache,
                            .v = v_cache,
                            .key_len = context.key_len,
                            .key_mask = context.key_mask,
                            .out = {},
                            .heads = static_cast<int32_t>(c.heads),
                            .kv_heads = static_cast<int32_t>(c.kv_heads),
                            .extra_keys = context.extra_keys,
                            .leading_block = context.leading_block,
                            .scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim))};
  record_attention(r, attention, layer.factors.attended, attended);
  keep(attended, "attended");
  if (two_times) {
    const Tensor after = record_two_time_residual(r, attended, layer.o, x, attention_mod);
    return record_two_time_residual(r, record_two_time_mlp(r, spec, after, layer, mlp_mod), layer.down, after, mlp_mod);
  }
  const Tensor after_attention = temporary(x.cols());
  const Tensor hidden = operand_buffer(r, spec.activation, rows, layer.down, layer.factors.hidden);  // (B·rows, mlp)
  const Tensor out = temporary(x.cols());
  r.add(LinearResidual{
      .x = attended, .w = layer.o, .bias = {}, .residual = x, .gate = attention_mod.gate, .out = after_attention});
  r.add(NormGateUpGelu{.x = after_attention,
                       .norm = norm_params(layer.post_norm, mlp_mod, c.eps),
                       .w_gate = layer.gate,
                       .w_up = layer.up,
                       .factors = layer.factors.hidden,
                       .out = hidden});
  keep(hidden, "hidden");
  r.add(LinearResidual{
      .x = hidden, .w = layer.down, .bias = {}, .residual = after_attention, .gate = mlp_mod.gate, .out = out});
  return out;
}

}  // namespace tendon
