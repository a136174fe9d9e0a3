#include "model/weights/weights.h"

#include <algorithm>
#include <set>

#include <fmt/ranges.h>

#include "base/check.h"
#include "model/weights/names.h"

namespace tendon {
namespace {

using Visitor = std::function<void(const WeightSpec&, Tensor&)>;

// Carries the visitor through the layers.
class Visit {
 public:
  Visit(const ModelConfig& config, const Visitor& f) : config_(config), f_(f) {}

  void tensor(const std::string& name, const Shape& shape, WeightRole role, Tensor& tensor) const {
    f_({name, shape, role}, tensor);
  }
  void linear(const std::string& name, int64_t out, int64_t in, WeightRole role, LinearWeights& linear) const {
    tensor(name + "weight", {out, in}, role, linear.w);
    tensor(name + "bias", {out}, is_matrix(role) ? WeightRole::kFloat : role, linear.bias);
  }
  void layer_norm(const std::string& name, LayerNormWeights& norm) const {
    tensor(name + "weight", {config_.vision.width}, WeightRole::kFloat, norm.gain);
    tensor(name + "bias", {config_.vision.width}, WeightRole::kFloat, norm.bias);
  }
  void rms_norm(const std::string& name, int64_t width, bool adaptive, WeightRole role, NormWeights& norm) const {
    if (adaptive) {
      linear(name + "dense.", 3 * width, width, WeightRole::kTimeOnly, norm.modulation);
    } else {
      tensor(name + "weight", {width}, role, norm.gain);
    }
  }

  void vision(VisionWeights& weights) const {
    const VisionConfig& c = config_.vision;
    const std::string embeddings = kVision + "embeddings.";
    tensor(embeddings + "patch_embedding.weight", {c.width, 3, c.patch, c.patch}, WeightRole::kFloat, weights.patch.w);
    tensor(embeddings + "patch_embedding.bias", {c.width}, WeightRole::kFloat, weights.patch.bias);
    tensor(embeddings + "position_embedding.weight", {c.tokens(), c.width}, WeightRole::kFloat, weights.positions);
    weights.layers.resize(static_cast<size_t>(c.depth));
    for (int64_t i = 0; i < c.depth; ++i) {
      VisionLayerWeights& layer = weights.layers[static_cast<size_t>(i)];
      const std::string at = fmt::format("{}encoder.layers.{}.", kVision, i);
      layer_norm(at + "layer_norm1.", layer.norm1);
      layer_norm(at + "layer_norm2.", layer.norm2);
      linear(at + "self_attn.q_proj.", c.width, c.width, WeightRole::kVisionNormedMatrix, layer.q);
      linear(at + "self_attn.k_proj.", c.width, c.width, WeightRole::kVisionNormedMatrix, layer.k);
      linear(at + "self_attn.v_proj.", c.width, c.width, WeightRole::kVisionNormedMatrix, layer.v);
      linear(at + "self_attn.out_proj.", c.width, c.width, WeightRole::kVisionRestMatrix, layer.out);
      linear(at + "mlp.fc1.", c.mlp, c.width, WeightRole::kVisionNormedMatrix, layer.fc1);
      linear(at + "mlp.fc2.", c.width, c.mlp, WeightRole::kVisionRestMatrix, layer.fc2);
    }
    layer_norm(kVision + "post_layernorm.", weights.post_norm);
    linear(kProjector, config_.prefix.width, c.width, WeightRole::kVisionNormedMatrix, weights.projector);
  }

  void gemma(const std::string& prefix, const GemmaConfig& c, bool is_prefix, GemmaWeights& weights) const {
    const bool adaptive = !is_prefix && config_.pi05();
    weights.layers.resize(static_cast<size_t>(config_.depth));
    for (int64_t i = 0; i < config_.depth; ++i) {
      GemmaLayerWeights& layer = weights.layers[static_cast<size_t>(i)];
      const std::string at = fmt::format("{}layers.{}.", prefix, i);
      const bool dead = is_prefix && i + 1 == config_.depth;
      const WeightRole live = is_prefix ? WeightRole::kPrefixMatrix : WeightRole::kExpertMatrix;
      const WeightRole matrix = dead ? WeightRole::kDead : live;
      rms_norm(at + "input_layernorm.", c.width, adaptive, WeightRole::kFloat, layer.input_norm);
      rms_norm(at + "post_attention_layernorm.", c.width, adaptive, dead ? WeightRole::kDead : WeightRole::kFloat,
               layer.post_norm);
      tensor(at + "self_attn.q_proj.weight", {config_.q_width(), c.width}, matrix, layer.q);
      tensor(at + "self_attn.k_proj.weight", {config_.kv_width(), c.width}, live, layer.k);
      tensor(at + "self_attn.v_proj.weight", {config_.kv_width(), c.width}, live, layer.v);
      tensor(at + "self_attn.o_proj.weight", {c.width, config_.q_width()}, matrix, layer.o);
      tensor(at + "mlp.gate_proj.weight", {c.mlp, c.width}, matrix, layer.gate);
      tensor(at + "mlp.up_proj.weight", {c.mlp, c.width}, matrix, layer.up);
      tensor(at + "mlp.down_proj.weight", {c.width, c.mlp}, matrix, layer.down);
    }
    rms_norm(prefix + "norm.", c.width, adaptive, is_prefix ? WeightRole::kDead : WeightRole::kFloat,
             weights.final_norm);
  }

  void projections(Weights& weights) const {
    const int64_t width = config_.expert.width;
    linear("action_in_proj.", width, config_.action_dim, WeightRole::kFloat, weights.action_in);
    linear("action_out_proj.", config_.action_dim, width, WeightRole::kFloat, weights.action_out);
    if (config_.pi05()) {
      linear("time_mlp_in.", width, width, WeightRole::kTimeOnly, weights.time_mlp_in);
      linear("time_mlp_out.", width, width, WeightRole::kTimeOnly, weights.time_mlp_out);
    } else {
      linear("state_proj.", width, config_.action_dim, WeightRole::kFloat, weights.state_in);
      linear("action_time_mlp_in.", width, 2 * width, WeightRole::kFloat, weights.time_mlp_in);
      linear("action_time_mlp_out.", width, width, WeightRole::kFloat, weights.time_mlp_out);
    }
  }

 private:
  const ModelConfig& config_;
  const Visitor& f_;
};

std::string first_names(const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  const auto shown =
      std::vector<std::string>(names.begin(), names.begin() + std::min<std::ptrdiff_t>(5, std::ssize(names)));
  return fmt::format(" {} {}: {}{}.", names.size(), what, fmt::join(shown, ", "), names.size() > 5 ? ", …" : "");
}

}  // namespace

void visit_weights(Weights& weights, const ModelConfig& config, const Visitor& f) {
  const Visit visit(config, f);
  visit.vision(weights.vision);
  visit.tensor(kEmbedding, {config.vocab, config.prefix.width}, WeightRole::kEmbeddingMatrix, weights.embedding);
  visit.gemma(kPrefix, config.prefix, true, weights.prefix);
  visit.gemma(kExpert, config.expert, false, weights.expert);
  visit.projections(weights);
}

std::vector<WeightSpec> stored_layout(const ModelConfig& config) {
  std::vector<WeightSpec> layout{{kExpertHead, {config.vocab, config.expert.width}, WeightRole::kDead}};
  Weights weights;
  visit_weights(weights, config, [&](const WeightSpec& spec, Tensor&) { layout.push_back(spec); });
  std::ranges::sort(layout, {}, &WeightSpec::name);
  return layout;
}

Weights load_weights(const TensorSource& source, const ModelConfig& config) {
  Weights weights;
  weights.source = &source;
  std::vector<std::string> missing, wrong_shape, unexpected;
  std::set<std::string, std::less<>> expected{kExpertHead};
  visit_weights(weights, config, [&](const WeightSpec& spec, Tensor& tensor) {
    expected.insert(spec.name);
    if (!source.contains(spec.name)) {
      missing.push_back(spec.name);
      return;
    }
    const bool is_large = is_matrix(spec.role) || spec.role == WeightRole::kDead;
    tensor = is_large ? source.header(spec.name) : source.tensor(spec.name);
    if (tensor.shape != spec.shape) {
      wrong_shape.push_back(
          fmt::format("{} (expected {}, found {})", spec.name, to_string(spec.shape), to_string(tensor.shape)));
    }
  });
  for (const std::string& name : source.names()) {
    if (!expected.contains(name)) unexpected.push_back(name);
  }
  if (!missing.empty() || !wrong_shape.empty() || !unexpected.empty()) {
    throw_bad_input("{}: the weights do not fit a {} network.{}{}{} Nothing was loaded.", source.description(),
                    variant_name(config.variant), first_names("missing", missing),
                    first_names("of another shape", wrong_shape), first_names("unexpected", unexpected));
  }
  return weights;
}

}  // namespace tendon
