#include "checkpoint/key_styles.h"

#include <initializer_list>

#include <fmt/format.h>

namespace tendon {
namespace {

constexpr std::string_view kPaligemma = "paligemma_with_expert.paligemma.";
constexpr std::string_view kExpert = "paligemma_with_expert.gemma_expert.";

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> prefixes) {
  for (const std::string_view prefix : prefixes) {
    if (text.starts_with(prefix)) return true;
  }
  return false;
}

bool strip(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

KeyMapping ignored(std::string canonical, std::string_view note) {
  return {KeyKind::kIgnored, std::move(canonical), note};
}

// `rest` follows kPaligemma.
KeyMapping map_paligemma(std::string_view name, std::string_view rest) {
  const bool inner_model = strip(rest, "model.");
  const std::string prefix = std::string(kPaligemma) + "model.";
  if (strip(rest, "language_model.")) {
    if (starts_with_any(rest, {"lm_head."})) return {KeyKind::kWeight, std::string(kPaligemma).append(rest), {}};
    strip(rest, "model.");
    return {KeyKind::kWeight, prefix + "language_model." + std::string(rest), {}};
  }
  if (strip(rest, "vision_tower.")) {
    strip(rest, "vision_model.");
    std::string canonical = prefix + "vision_tower.vision_model." + std::string(rest);
    if (rest.starts_with("head.")) return ignored(std::move(canonical), "pooling head of the vision tower, not used");
    return {KeyKind::kWeight, std::move(canonical), {}};
  }
  if (rest.starts_with("multi_modal_projector.")) return {KeyKind::kWeight, prefix + std::string(rest), {}};
  if (inner_model && rest.starts_with("lm_head.")) return {KeyKind::kWeight, std::string(kPaligemma).append(rest), {}};
  return {KeyKind::kWeight, std::string(name), {}};
}

}  // namespace

KeyMapping map_key(std::string_view stored) {
  std::string_view name = stored;
  if (std::string_view inner = name; strip(inner, "model.")) {
    if (starts_with_any(inner, {"paligemma_with_expert.", "state_proj.", "action_", "time_mlp", "proprio_history_proj.",
                                "normalize_inputs.", "normalize_targets.", "unnormalize_outputs."})) {
      name = inner;
    }
  }
  if (name.find("lora_") != std::string_view::npos) {
    return {
        KeyKind::kRefused, std::string(name),
        "a LoRA adapter that was not merged into the weights; merge the adapters, save the checkpoint again and load "
        "that"};
  }
  if (name.starts_with("proprio_history_proj.")) {
    return {KeyKind::kRefused, std::string(name),
            "part of an observation-history (memory) variant of the model, which is not supported; use a checkpoint "
            "trained without it"};
  }
  if (starts_with_any(name, {"normalize_inputs.", "normalize_targets.", "unnormalize_outputs."})) {
    return {KeyKind::kStats, std::string(name), "normalisation statistics, not weights"};
  }
  if (starts_with_any(
          name, {"model.expert.", "model.vision_tower.", "model.language_model.", "model.multi_modal_projector."})) {
    return {
        KeyKind::kRefused, std::string(name),
        "named as in transformers' own PI0ForConditionalGeneration, which is not supported; use the openpi or LeRobot "
        "files of the same model"};
  }
  if (name.ends_with("rotary_emb.inv_freq") || name.ends_with("position_ids")) {
    return ignored(std::string(name), "buffer that is computed at load");
  }
  if (std::string_view rest = name; strip(rest, kExpert)) {
    if (starts_with_any(rest, {"lm_head.", "model.embed_tokens."})) {
      return ignored(std::string(name), "the action expert reads and writes no tokens");
    }
    return {KeyKind::kWeight, std::string(name), {}};
  }
  if (std::string_view rest = name; strip(rest, kPaligemma)) return map_paligemma(name, rest);
  return {KeyKind::kWeight, std::string(name), {}};
}

std::string describe_key(std::string_view canonical) {
  if (canonical != kEmbeddingName) return std::string(canonical);
  return fmt::format("{} (or {})", kEmbeddingName, kEmbedTokensName);
}

}  // namespace tendon
