#include "model/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "base/check.h"
#include "model/weights/names.h"

namespace tendon {
namespace {

Shape shape_of(const TensorSource& source, const std::string& name, int rank) {
  if (!source.contains(name)) {
    throw_bad_input(
        "{}: the weight '{}' is missing, so the size of the network cannot be told. Is this a π0 or π0.5 checkpoint?",
        source.description(), name);
  }
  const Shape shape = source.tensor(name).shape;
  if (shape.rank() != rank) {
    throw_bad_input("{}: the weight '{}' has shape {}, expected {} dimensions.", source.description(), name,
                    to_string(shape), rank);
  }
  return shape;
}

// One more than the largest layer number under `prefix`, whatever tensor of that layer it is: a layer that lacks one
// tensor is a layer still, and load_weights names what it lacks.
int64_t count_layers(const TensorSource& source, const std::string& prefix) {
  constexpr int64_t kMaxLayers = 1000;
  int64_t layers = 0;
  for (const std::string& name : source.names()) {
    if (!name.starts_with(prefix)) continue;
    int64_t number = -1;
    const char* const begin = name.data() + prefix.size();
    const char* const end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(begin, end, number);
    if (error == std::errc{} && rest != end && *rest == '.' && number >= 0 && number < kMaxLayers)
      layers = std::max(layers, number + 1);
  }
  return layers;
}

// The head count that the file states, or the published model's for published widths.
int64_t heads_or(std::optional<int64_t> stated, int64_t width, int64_t published_head_dim, const char* what,
                 const TensorSource& source) {
  if (stated) {
    if (*stated <= 0 || width % *stated != 0) {
      throw_bad_input("{}: config.json says {} {} for a width of {}, which does not divide it.", source.description(),
                      *stated, what, width);
    }
    return *stated;
  }
  if (width % published_head_dim != 0) {
    throw_bad_input("{}: the number of {} cannot be told from a width of {}; state it in config.json.",
                    source.description(), what, width);
  }
  return width / published_head_dim;
}

}  // namespace

ModelConfig infer_model_config(const TensorSource& source, const CheckpointConfig& config, Variant variant) {
  ModelConfig model;
  model.variant = variant;

  const Shape patch = shape_of(source, kVision + "embeddings.patch_embedding.weight", 4);
  const Shape positions = shape_of(source, kVision + "embeddings.position_embedding.weight", 2);
  VisionConfig& vision = model.vision;
  vision.width = patch[0];
  vision.patch = patch[2];
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(positions[0]))));
  if (side * side != positions[0]) {
    throw_bad_input("{}: the position table has {} rows, which is no square grid of patches.", source.description(),
                    positions[0]);
  }
  vision.image_size = side * vision.patch;
  vision.depth = count_layers(source, kVision + "encoder.layers.");
  vision.mlp = shape_of(source, kVision + "encoder.layers.0.mlp.fc1.weight", 2)[0];
  vision.heads = heads_or(config.vision_heads, vision.width, 72, "vision heads", source);

  model.depth = count_layers(source, kPrefix + "layers.");
  const int64_t expert_depth = count_layers(source, kExpert + "layers.");
  if (model.depth != expert_depth || model.depth == 0) {
    throw_bad_input("{}: the language model has {} layers and the action expert {}; they must be equal.",
                    source.description(), model.depth, expert_depth);
  }
  const Shape gate = shape_of(source, kPrefix + "layers.0.mlp.gate_proj.weight", 2);
  const Shape expert_gate = shape_of(source, kExpert + "layers.0.mlp.gate_proj.weight", 2);
  model.prefix = {.width = gate[1], .mlp = gate[0]};
  model.expert = {.width = expert_gate[1], .mlp = expert_gate[0]};
  const int64_t q_width = shape_of(source, kPrefix + "layers.0.self_attn.q_proj.weight", 2)[0];
  const int64_t kv_width = shape_of(source, kPrefix + "layers.0.self_attn.k_proj.weight", 2)[0];
  model.heads = heads_or(config.gemma_heads, q_width, 256, "attention heads", source);
  model.head_dim = config.head_dim.value_or(q_width / model.heads);
  if (model.head_dim <= 0 || model.head_dim % 2 != 0 || model.heads * model.head_dim != q_width ||
      kv_width % model.head_dim != 0 || model.heads % (kv_width / model.head_dim) != 0) {
    throw_bad_input("{}: {} heads of {} do not fit a query width of {} and a key width of {}.", source.description(),
                    model.heads, model.head_dim, q_width, kv_width);
  }
  model.kv_heads = kv_width / model.head_dim;
  if (!source.contains(kEmbedding)) {
    throw_bad_input(
        "{}: the token embedding is missing: neither '{}' nor '{}embed_tokens.weight' is in the checkpoint. Convert or "
        "save the checkpoint again with its embedding.",
        source.description(), kEmbedding, kPrefix);
  }
  model.vocab = shape_of(source, kEmbedding, 2)[0];
  model.action_dim = shape_of(source, "action_in_proj.weight", 2)[1];

  model.rope_theta = config.rope_theta.value_or(model.rope_theta);
  model.min_period = config.min_period.value_or(model.min_period);
  model.max_period = config.max_period.value_or(model.max_period);
  model.vision.eps = static_cast<float>(config.layer_norm_eps.value_or(1e-6));
  model.eps = static_cast<float>(config.rms_norm_eps.value_or(1e-6));
  return model;
}

namespace {

int64_t choose(const LengthChoice& choice, std::optional<int64_t> stated, bool statement_first, const char* what,
               const char* flag, const char* advice) {
  const std::optional<int64_t> first = statement_first ? stated : choice.preset;
  const std::optional<int64_t> second = statement_first ? choice.preset : stated;
  const std::optional<int64_t> value = choice.option ? choice.option : first ? first : second;
  if (!value) {
    throw_bad_input(
        "The {} is unknown: the checkpoint's config.json does not say it and it cannot be read off the weights. {} or "
        "give {} N.",
        what, advice, flag);
  }
  if (*value < 1 || *value > 4096) throw_bad_input("The {} must lie between 1 and 4096, not {}.", what, *value);
  return *value;
}

}  // namespace

void choose_lengths(ModelConfig& model, const CheckpointConfig& config, const LengthChoice& horizon,
                    const LengthChoice& max_token_len) {
  const bool statement_first = config.kind == ConfigKind::kLerobot;
  model.horizon = choose(horizon, config.horizon, statement_first, "action horizon", "--horizon", "Name a --preset");
  model.max_token_len = choose(max_token_len, config.max_token_len, statement_first, "prompt budget in tokens",
                               "--max-tokens", "Name a --preset");
}

ModelConfig full_config(Variant variant) {
  ModelConfig model;
  model.variant = variant;
  model.vision = {.image_size = 224, .width = 1152, .depth = 27, .heads = 16, .mlp = 4304};
  model.prefix = {.width = 2048, .mlp = 16384};
  model.expert = {.width = 1024, .mlp = 4096};
  model.depth = 18;
  model.heads = 8;
  model.kv_heads = 1;
  model.head_dim = 256;
  model.vocab = 257152;
  model.action_dim = 32;
  model.horizon = 50;
  model.max_token_len = model.pi05() ? 200 : 48;
  return model;
}

ModelConfig tiny_config(Variant variant, int64_t action_dim) {
  ModelConfig model;
  model.variant = variant;
  model.vision = {.image_size = model.pi05() ? 56 : 28, .width = 48, .depth = 2, .heads = 3, .mlp = 80};
  model.prefix = {.width = 64, .mlp = 128};
  model.expert = {.width = 32, .mlp = 96};
  model.depth = 3;
  model.heads = 8;
  model.kv_heads = 1;
  model.head_dim = 16;
  model.vocab = 512;
  model.action_dim = action_dim;
  model.horizon = 5;
  model.max_token_len = model.pi05() ? 16 : 12;
  return model;
}

}  // namespace tendon
