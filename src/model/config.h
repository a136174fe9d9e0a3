// Dimensions of a π0 or π0.5 network. Layer sizes come from tensor shapes; what shapes cannot tell comes from the
// checkpoint's config, a preset or an option, and is never guessed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/checkpoint_config.h"
#include "checkpoint/tensor_source.h"

namespace tendon {

struct VisionConfig {
  int64_t image_size = 0, patch = 14;  // pixels
  int64_t width = 0, depth = 0, heads = 0, mlp = 0;
  float eps = 1e-6F;
  int64_t tokens() const { return (image_size / patch) * (image_size / patch); }
  int64_t pixels() const { return image_size * image_size * 3; }
};

struct GemmaConfig {
  int64_t width = 0, mlp = 0;
};

struct ModelConfig {
  Variant variant = Variant::kPi0;
  VisionConfig vision;
  GemmaConfig prefix, expert;
  int64_t depth = 0;  // layers of both Gemma stacks
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t vocab = 0;
  float eps = 1e-6F;  // of every RMS norm
  double rope_theta = 10000.0;
  double min_period = 4e-3, max_period = 4.0;  // of the time embedding
  int64_t action_dim = 0;
  int64_t horizon = 0;        // H, action rows; 0 until somebody says it
  int64_t max_token_len = 0;  // prompt budget; 0 until somebody says it

  bool pi05() const { return variant == Variant::kPi05; }
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

// Sizes from the tensors of `source` and, for what shapes do not hold (head counts, periods), from `config`. Throws
// Error(kBadInput) naming the tensor when one is missing or its rank is off.
ModelConfig infer_model_config(const TensorSource& source, const CheckpointConfig& config, Variant variant);

// Fills horizon and token budget: the option, else the preset, else the config; a LeRobot config (chunk_size,
// tokenizer_max_length) is of this very policy and comes before the preset. Throws Error(kBadInput) that asks for them
// when nobody says, and when they are not positive.
struct LengthChoice {
  std::optional<int64_t> option, preset;
};
void choose_lengths(ModelConfig& model, const CheckpointConfig& config, const LengthChoice& horizon,
                    const LengthChoice& max_token_len);

// The two synthetic sizes.
ModelConfig full_config(Variant variant);
ModelConfig tiny_config(Variant variant, int64_t action_dim = 32);

}  // namespace tendon
