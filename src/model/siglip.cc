// SigLIP vision tower and projector.
#include <cmath>

#include "model/forward.h"

namespace tendon {

namespace {

// The pictures with those scaled that come as frames.
Tensor record_frames(Recorder& r, const ForwardSpec& spec, const Tensor& images) {
  if (!spec.takes_frames()) return images;
  const Tensor pictures = r.temporary(images.dtype, images.shape);
  r.add(ResizeFrames{.images = images,
                     .frames = r.input("frames", DType::kI32, {images.shape[0]}),
                     .pool = spec.frame_pool,
                     .out = pictures});
  return pictures;
}

}  // namespace

Tensor record_vision(Recorder& r, const ForwardSpec& spec, const Tensor& images) {
  const VisionConfig& c = spec.config.vision;
  const VisionWeights& weights = spec.weights.vision;
  const int64_t n = images.shape[0];
  const int64_t rows = n * c.tokens();
  const auto temporary = [&](int64_t cols) { return r.temporary(spec.activation, {rows, cols}); };
  const auto tap = [&](const Tensor& x, const std::string& name) {
    if (spec.taps) r.keep(x, name);
  };
  const auto keep_operand = [&](const Tensor& value, const char* operand, int64_t layer) {
    if (spec.operand_taps) r.keep(value, operand_name("vision", operand, layer));
  };

  Tensor x = temporary(c.width);  // (N·T, W)
  r.add(PatchEmbed{.images = record_frames(r, spec, images),
                   .w = weights.patch.w,
                   .bias = weights.patch.bias,
                   .positions = weights.positions,
                   .out = x,
                   .patch = static_cast<int32_t>(c.patch)});
  tap(x, "vision.embed");
  for (int64_t i = 0; i < c.depth; ++i) {
    const Recorder::Scope scope = r.scope(std::to_string(i));
    const VisionLayerWeights& w = weights.layers[static_cast<size_t>(i)];
    const Tensor qkv = temporary(3 * c.width);                                                      // (N·T, q | k | v)
    const Tensor attended = operand_buffer(r, spec.activation, rows, w.out.w, w.factors.attended);  // (N·T, W)
    const Tensor after_attention = temporary(c.width);
    const Tensor hidden = operand_buffer(r, spec.activation, rows, w.fc2.w, w.factors.hidden);  // (N·T, mlp)
    const Tensor out = temporary(c.width);
    const auto heads = [&](const Tensor& t) { return t.reshaped({n, c.tokens(), c.width}); };

    r.add(LayerNormQkv{.x = x,
                       .gain = w.norm1.gain,
                       .bias = w.norm1.bias,
                       .wq = w.q.w,
                       .wk = w.k.w,
                       .wv = w.v.w,
                       .bq = w.q.bias,
                       .bk = w.k.bias,
                       .bv = w.v.bias,
                       .out = qkv,
                       .eps = c.eps});
    const Attention attention{.q = heads(qkv.col_range(0, c.width)),
                              .k = heads(qkv.col_range(c.width, c.width)),
                              .v = heads(qkv.col_range(2 * c.width, c.width)),
                              .key_len = {},
                              .key_mask = {},
                              .out = {},
                              .heads = static_cast<int32_t>(c.heads),
                              .kv_heads = static_cast<int32_t>(c.heads),
                              .scale = 1.0F / std::sqrt(static_cast<float>(c.width / c.heads))};
    record_attention(r, attention, w.factors.attended, attended);
    keep_operand(attended, "attended", i);
    r.add(LinearResidual{
        .x = attended, .w = w.out.w, .bias = w.out.bias, .residual = x, .gate = {}, .out = after_attention});
    r.add(LayerNormLinear{.x = after_attention,
                          .gain = w.norm2.gain,
                          .bias = w.norm2.bias,
                          .w = w.fc1.w,
                          .linear_bias = w.fc1.bias,
                          .factors = w.factors.hidden,
                          .out = hidden,
                          .eps = c.eps,
                          .activation = Activation::kGeluTanh});
    keep_operand(hidden, "hidden", i);
    r.add(LinearResidual{
        .x = hidden, .w = w.fc2.w, .bias = w.fc2.bias, .residual = after_attention, .gate = {}, .out = out});
    tap(out, "vision.layer." + std::to_string(i));
    x = out;
  }
  const Tensor features = temporary(spec.config.prefix.width);  // (N·T, prefix width)
  r.add(LayerNormLinear{.x = x,
                        .gain = weights.post_norm.gain,
                        .bias = weights.post_norm.bias,
                        .w = weights.projector.w,
                        .linear_bias = weights.projector.bias,
                        .out = features,
                        .eps = c.eps});
  tap(features, "image_features");
  return features;
}

}  // namespace tendon
