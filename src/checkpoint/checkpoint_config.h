// config.json beside the weights, as written by openpi's converter, by LeRobot, or by `tendon synth`.
// Nothing here is needed for layer sizes: those come from tensor shapes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace tendon {

enum class Variant { kPi0, kPi05 };
constexpr std::string_view variant_name(Variant variant) { return variant == Variant::kPi0 ? "pi0" : "pi05"; }

// How a vector is normalised; LeRobot files say it per feature type, for openpi it follows from the variant.
enum class NormMode { kMeanStd, kQuantile, kIdentity };
constexpr std::string_view norm_mode_name(NormMode mode) {
  return mode == NormMode::kMeanStd ? "mean/std" : mode == NormMode::kQuantile ? "quantile" : "identity";
}
// LeRobot's words: MEAN_STD, QUANTILES, IDENTITY. Nothing for any other word (MIN_MAX, QUANTILE10, ...).
std::optional<NormMode> parse_norm_mode(std::string_view word);

enum class ConfigKind {
  kNone,       // no config.json
  kOpenpi,     // openpi's JAX-to-PyTorch converter
  kLerobot,    // a LeRobot policy
  kSynthetic,  // tendon synth
};

// A field is empty when the file does not have it.
struct CheckpointConfig {
  ConfigKind kind = ConfigKind::kNone;
  std::string where;  // path of the file, for messages

  std::optional<Variant> variant;    // what the file claims; tensors decide
  std::optional<std::string> dtype;  // "bfloat16", "float32": of the stored or trained weights
  std::optional<std::string> paligemma_variant, action_expert_variant;  // "gemma_2b", "gemma_300m", ...

  std::optional<int64_t> horizon;         // H, action rows: action_horizon, chunk_size
  std::optional<int64_t> max_token_len;   // prompt budget in tokens: max_token_len, tokenizer_max_length
  std::optional<int64_t> action_dim;      // D, padded action width: action_dim, max_action_dim
  std::optional<int64_t> state_dim;       // padded state width: max_state_dim
  std::optional<int64_t> num_steps;       // denoising steps: num_steps, num_inference_steps
  std::optional<int64_t> n_action_steps;  // rows that a LeRobot robot executes of a chunk

  std::optional<int64_t> image_size, patch;  // pixels
  std::optional<int64_t> vision_heads, gemma_heads, kv_heads, head_dim;
  std::optional<double> rope_theta, layer_norm_eps, rms_norm_eps;
  std::optional<double> min_period, max_period;  // of the time embedding

  // LeRobot only.
  std::vector<std::string> cameras;         // VISUAL keys of input_features in file order, e.g. observation.images.top
  std::optional<int64_t> empty_cameras;     // always-masked views appended to those
  std::optional<int64_t> robot_state_dim;   // input_features["observation.state"].shape
  std::optional<int64_t> robot_action_dim;  // output_features["action"].shape: width of the answer
  std::map<std::string, NormMode> norm_modes;  // normalization_mapping: VISUAL, STATE, ACTION

  std::vector<std::string> unknown_fields;  // ignored
};

// Parses the text of a config.json; `where` is its path. Unknown fields are listed in one log line. Throws
// Error(kBadInput) that names the field when: the text is not a JSON object; a field has the wrong type or a number is
// out of range; an option is switched on that tendon does not support (relative actions, ALOHA adaptation of the old
// LeRobot port, observation history, LoRA adapters); two names of one setting contradict each other; the policy type is
// neither pi0 nor pi05; image_resolution is not square.
CheckpointConfig parse_checkpoint_config(std::string_view text, const std::string& where, const LogSink& log = {});

// Reads `<directory>/config.json`; all fields are empty when there is none.
CheckpointConfig load_checkpoint_config(const std::filesystem::path& directory, const LogSink& log = {});

}  // namespace tendon
