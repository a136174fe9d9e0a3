#include "checkpoint/checkpoint_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <set>
#include <system_error>

#include <fmt/ranges.h>

#include "base/check.h"
#include "checkpoint/json_text.h"

namespace tendon {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxCount = 1'000'000;

// Fields that are known and have no influence on inference, so that they are not listed as unknown.
// clang-format off
constexpr std::array kSilent = {
    "device", "use_amp", "push_to_hub", "repo_id", "private", "tags", "license", "pretrained_path",
    "gradient_checkpointing", "compile_model", "compile_mode", "train_expert_only", "freeze_vision_encoder",
    "train_state_proj", "use_cache", "attention_implementation", "proj_width", "rtc_config",
    "time_sampling_beta_alpha", "time_sampling_beta_beta", "time_sampling_scale", "time_sampling_offset",
    "optimizer_lr", "optimizer_betas", "optimizer_eps", "optimizer_weight_decay", "optimizer_grad_clip_norm",
    "scheduler_warmup_steps", "scheduler_decay_steps", "scheduler_decay_lr", "relative_exclude_joints",
    "action_feature_names", "expert"};
// clang-format on

// Options whose effect tendon does not have. Off (false, 0, null, empty) is fine.
constexpr std::array kUnsupported = {"adapt_to_pi_aloha", "use_delta_joint_actions_aloha", "use_relative_actions",
                                     "use_peft"};

// Variants that condition on earlier observations go by several names.
bool is_memory_option(std::string_view name) {
  return name.find("history") != std::string_view::npos || name.starts_with("memory") ||
         name.starts_with("use_memory") || name.starts_with("use_video_memory");
}

bool is_on(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.is_null() && !value.empty();
}

// Typed access to one JSON object that remembers which fields were asked for.
class Fields {
 public:
  Fields(const Json& object, std::string where, std::string prefix)
      : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {}

  // Null when absent or null.
  const Json* find(const std::string& name) {
    asked_.insert(name);
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void wrong(const std::string& name, const Json& value, std::string_view expected) const {
    throw_bad_input("{}: the field '{}{}' is {} ({}), expected {}", where_, prefix_, name, json_type(value),
                    shorten(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60), expected);
  }

  std::optional<int64_t> integer(const std::string& name, int64_t least = 1, int64_t most = kMaxCount) {
    const Json* value = find(name);
    if (value == nullptr) return {};
    const bool whole = value->is_number_integer();
    const bool large = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(most);
    if (!whole || large || value->get<int64_t>() < least || value->get<int64_t>() > most) {
      wrong(name, *value, fmt::format("an integer from {} to {}", least, most));
    }
    return value->get<int64_t>();
  }

  std::optional<double> positive(const std::string& name) {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_number() || !(value->get<double>() > 0) || !std::isfinite(value->get<double>())) {
      wrong(name, *value, "a positive number");
    }
    return value->get<double>();
  }

  std::optional<std::string> text(const std::string& name) {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_string()) wrong(name, *value, "a string");
    return value->get<std::string>();
  }

  std::optional<bool> boolean(const std::string& name) {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_boolean()) wrong(name, *value, "true or false");
    return value->get<bool>();
  }

  const Json* object(const std::string& name) {
    const Json* value = find(name);
    if (value != nullptr && !value->is_object()) wrong(name, *value, "an object");
    return value;
  }

  // The first of two names of one setting; both must agree.
  std::optional<int64_t> either(const std::string& name, const std::string& old_name) {
    const std::optional<int64_t> value = integer(name);
    const std::optional<int64_t> old_value = integer(old_name);
    if (value && old_value && *value != *old_value) {
      throw_bad_input(
          "{}: the fields '{}' ({}) and '{}' ({}) are two names of one setting and contradict each other; remove one",
          where_, name, *value, old_name, *old_value);
    }
    return value ? value : old_value;
  }

  std::vector<std::string> not_asked() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : object_.items()) {
      if (!asked_.contains(name)) names.push_back(shorten(name, 60));
    }
    return names;
  }

  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
  std::string prefix_;
  std::set<std::string> asked_;
};

void refuse_unsupported(Fields& fields, const Json& json) {
  for (const auto& [name, value] : json.items()) {
    const bool unsupported = std::find(kUnsupported.begin(), kUnsupported.end(), name) != kUnsupported.end();
    if (!unsupported && !is_memory_option(name)) continue;
    fields.find(name);
    if (is_on(value)) {
      throw_bad_input(
          "{}: the option '{}' is switched on ({}), and tendon does not support it; its actions would be wrong. "
          "Use a checkpoint trained without it.",
          fields.where(), shorten(name, 60), shorten(value.dump(-1, ' ', false, Json::error_handler_t::replace), 60));
    }
  }
  if (const auto steps = fields.integer("n_obs_steps"); steps.value_or(1) > 1) {
    throw_bad_input(
        "{}: the option 'n_obs_steps' is {}; tendon reads one observation per call. Use a checkpoint trained "
        "with n_obs_steps 1.",
        fields.where(), *steps);
  }
}

void claim_variant(CheckpointConfig& config, Variant variant, const char* name) {
  if (config.variant && *config.variant != variant) {
    throw_bad_input("{}: the field '{}' says {} and another field says {}; correct one of them", config.where, name,
                    variant_name(variant), variant_name(*config.variant));
  }
  config.variant = variant;
}

void read_variant(Fields& fields, const Json& json, CheckpointConfig& config) {
  if (const std::optional<std::string> type = fields.text("type")) {
    if (*type != "pi0" && *type != "pi05") {
      throw_bad_input("{}: the field 'type' says '{}'; tendon runs 'pi0' and 'pi05'", config.where, shorten(*type, 60));
    }
    claim_variant(config, *type == "pi0" ? Variant::kPi0 : Variant::kPi05, "type");
  }
  // Other tools keep other things under this name.
  for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
    const auto model = json.find("model");
    if (model == json.end() || *model != variant_name(variant)) continue;
    fields.find("model");
    claim_variant(config, variant, "model");
  }
  if (const std::optional<bool> pi05 = fields.boolean("pi05")) {
    claim_variant(config, *pi05 ? Variant::kPi05 : Variant::kPi0, "pi05");
  }
}

// [height, width], which must be equal.
void read_resolution(Fields& fields, const char* name, CheckpointConfig& config) {
  const Json* value = fields.find(name);
  if (value == nullptr) return;
  const auto in_range = [](const Json& item) {
    return item.is_number_unsigned() && item.get<uint64_t>() > 0 && item.get<uint64_t>() <= 65536;
  };
  if (!value->is_array() || value->size() != 2 || !in_range((*value)[0]) || !in_range((*value)[1])) {
    fields.wrong(name, *value, "a list of two integers, height and width in pixels");
  }
  if ((*value)[0] != (*value)[1]) fields.wrong(name, *value, "a square resolution");
  config.image_size = (*value)[0].get<int64_t>();
}

// {"observation.images.top": {"type": "VISUAL", "shape": [3, 224, 224]}, ...}; calls visit(name, type, shape of rank 1
// or 0).
template <class Visit>
void read_features(Fields& fields, const char* name, const Visit& visit) {
  const Json* features = fields.object(name);
  if (features == nullptr) return;
  for (const auto& [feature, value] : features->items()) {
    Fields inner(value, fields.where(), fmt::format("{}.{}.", name, shorten(feature, 60)));
    if (!value.is_object()) fields.wrong(fmt::format("{}.{}", name, shorten(feature, 60)), value, "an object");
    const std::optional<std::string> type = inner.text("type");
    if (!type) throw_bad_input("{}: the field '{}.{}' has no 'type'", fields.where(), name, shorten(feature, 60));
    std::optional<int64_t> width;
    if (const Json* shape = inner.find("shape")) {
      const auto valid = [](const Json& dim) {
        return dim.is_number_unsigned() && dim.get<uint64_t>() <= static_cast<uint64_t>(kMaxCount);
      };
      if (!shape->is_array() || !std::all_of(shape->begin(), shape->end(), valid)) {
        inner.wrong("shape", *shape, "a list of dimensions");
      }
      if (shape->size() == 1) width = (*shape)[0].template get<int64_t>();
    }
    visit(feature, *type, width);
  }
}

void read_norm_modes(Fields& fields, CheckpointConfig& config) {
  const Json* mapping = fields.object("normalization_mapping");
  if (mapping == nullptr) return;
  for (const auto& [feature, value] : mapping->items()) {
    const std::string name = "normalization_mapping." + shorten(feature, 60);
    const std::optional<NormMode> mode =
        value.is_string() ? parse_norm_mode(value.get_ref<const std::string&>()) : std::nullopt;
    if (!mode) fields.wrong(name, value, "MEAN_STD, QUANTILES or IDENTITY");
    if (feature == "VISUAL" && *mode != NormMode::kIdentity) fields.wrong(name, value, "IDENTITY");
    config.norm_modes[feature] = *mode;
  }
}

void read_lerobot(Fields& fields, CheckpointConfig& config) {
  config.n_action_steps = fields.integer("n_action_steps");
  config.state_dim = fields.integer("max_state_dim");
  config.empty_cameras = fields.integer("empty_cameras", 0, 64);
  read_resolution(fields, "resize_imgs_with_padding", config);
  read_resolution(fields, "image_resolution", config);
  read_norm_modes(fields, config);
  read_features(fields, "input_features", [&](const std::string& name, const std::string& type, auto width) {
    if (type == "VISUAL") config.cameras.push_back(name);
    if (name == "observation.state") config.robot_state_dim = width;
  });
  read_features(fields, "output_features", [&](const std::string& name, const std::string&, auto width) {
    if (name == "action") config.robot_action_dim = width;
  });
}

// The sections of a config that tendon synth wrote; other sizes in them follow from tensor shapes.
void read_synthetic(Fields& fields, CheckpointConfig& config) {
  if (const Json* vision = fields.object("vision")) {
    Fields inner(*vision, config.where, "vision.");
    config.image_size = inner.integer("image_size", 1, 65536);
    config.patch = inner.integer("patch", 1, 65536);
    config.vision_heads = inner.integer("heads");
    config.layer_norm_eps = inner.positive("layer_norm_eps");
  }
  if (const Json* gemma = fields.object("gemma")) {
    Fields inner(*gemma, config.where, "gemma.");
    config.gemma_heads = inner.integer("heads");
    config.kv_heads = inner.integer("kv_heads");
    config.head_dim = inner.integer("head_dim");
    config.rope_theta = inner.positive("rope_theta");
    config.rms_norm_eps = inner.positive("rms_norm_eps");
  }
}

ConfigKind kind_of(const Json& json) {
  if (json.contains("type") || json.contains("chunk_size")) return ConfigKind::kLerobot;
  if (json.contains("vision") || json.contains("gemma")) return ConfigKind::kSynthetic;
  return ConfigKind::kOpenpi;
}

}  // namespace

std::optional<NormMode> parse_norm_mode(std::string_view word) {
  if (word == "MEAN_STD") return NormMode::kMeanStd;
  if (word == "QUANTILES") return NormMode::kQuantile;
  if (word == "IDENTITY") return NormMode::kIdentity;
  return {};
}

CheckpointConfig parse_checkpoint_config(std::string_view text, const std::string& where, const LogSink& log) {
  const Json json = parse_json(text, where);
  if (!json.is_object()) throw_bad_input("{}: the file holds {}, expected a JSON object", where, json_type(json));
  CheckpointConfig config;
  config.kind = kind_of(json);
  config.where = where;
  Fields fields(json, where, "");
  refuse_unsupported(fields, json);
  read_variant(fields, json, config);
  config.dtype = fields.text("dtype");
  if (const auto precision = fields.text("precision"); precision && !config.dtype) config.dtype = precision;
  config.paligemma_variant = fields.text("paligemma_variant");
  config.action_expert_variant = fields.text("action_expert_variant");
  config.horizon = fields.either("chunk_size", "action_horizon");
  config.max_token_len = fields.either("tokenizer_max_length", "max_token_len");
  config.action_dim = fields.either("max_action_dim", "action_dim");
  config.num_steps = fields.either("num_inference_steps", "num_steps");
  config.min_period = fields.positive("min_period");
  config.max_period = fields.positive("max_period");
  if (config.min_period && config.max_period && *config.min_period >= *config.max_period) {
    throw_bad_input("{}: the field 'min_period' ({}) is not below 'max_period' ({})", where, *config.min_period,
                    *config.max_period);
  }
  read_lerobot(fields, config);
  read_synthetic(fields, config);
  if (config.horizon && config.n_action_steps && *config.n_action_steps > *config.horizon) {
    throw_bad_input("{}: the field 'n_action_steps' ({}) exceeds 'chunk_size' ({})", where, *config.n_action_steps,
                    *config.horizon);
  }
  for (const auto& gemma : {config.paligemma_variant, config.action_expert_variant}) {
    if (gemma && gemma->ends_with("_lora")) {
      log_warning(log,
                  "{}: the variant {} was trained with LoRA adapters; openpi's converter drops them silently, so the "
                  "weights may be the base model's",
                  where, shorten(*gemma, 60));
    }
  }
  for (const char* name : kSilent) fields.find(name);
  config.unknown_fields = fields.not_asked();
  if (!config.unknown_fields.empty()) {
    log_info(log, "{}: ignored {} unknown fields: {}", where, config.unknown_fields.size(),
             shorten(fmt::format("{}", fmt::join(config.unknown_fields, ", ")), 1000));
  }
  return config;
}

CheckpointConfig load_checkpoint_config(const std::filesystem::path& directory, const LogSink& log) {
  const std::filesystem::path path = directory / "config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  return parse_checkpoint_config(read_text_file(path), path.string(), log);
}

}  // namespace tendon
