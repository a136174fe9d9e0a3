// One Gemma block, shared by the prefix (language model) and the action expert.
#include <cmath>

#include "model/forward.h"

namespace tendon {
namespace {

NormParams norm_params(const NormWeights& weights, const Modulation& modulation, float eps) {
  return {.gain = weights.gain, .scale = modulation.scale, .shift = modulation.shift, .eps = eps};
}

}  // namespace

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

  r.add(NormQkvRope{.x = x,
                    .norm = norm_params(layer.input_norm, attention_mod, c.eps),
                    .wq = kv_only ? Tensor{} : layer.q,
                    .wk = layer.k,
                    .wv = layer.v,
                    .positions = context.positions,
                    .cache_rows = context.cache_rows,
                    .table = spec.tables.rope,
                    .q = q,
                    .k_cache = k_cache,
                    .v_cache = v_cache});
  if (kv_only) return {};

  const Tensor attended = temporary(c.q_width());  // (B·rows, heads·D)
  const Tensor after_attention = temporary(x.cols());
  const Tensor hidden = temporary(layer.gate.rows());  // (B·rows, mlp)
  const Tensor out = temporary(x.cols());
  const auto samples = [&](const Tensor& t) { return t.reshaped({batch, rows / batch, t.cols()}); };
  r.add(Attention{.q = samples(q),
                  .k = k_cache,
                  .v = v_cache,
                  .key_len = context.key_len,
                  .key_mask = context.key_mask,
                  .out = samples(attended),
                  .heads = static_cast<int32_t>(c.heads),
                  .kv_heads = static_cast<int32_t>(c.kv_heads),
                  .extra_keys = context.extra_keys,
                  .leading_block = context.leading_block,
                  .scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim))});
  r.add(LinearResidual{
      .x = attended, .w = layer.o, .bias = {}, .residual = x, .gate = attention_mod.gate, .out = after_attention});
  r.add(NormGateUpGelu{.x = after_attention,
                       .norm = norm_params(layer.post_norm, mlp_mod, c.eps),
                       .w_gate = layer.gate,
                       .w_up = layer.up,
                       .out = hidden});
  r.add(LinearResidual{
      .x = hidden, .w = layer.down, .bias = {}, .residual = after_attention, .gate = mlp_mod.gate, .out = out});
  return out;
}

}  // namespace tendon
