#include "policy/policy.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "policy/resize.h"

namespace tendon {
namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void throw_status(const Status& status) {
  const bool is_input = status.code() == StatusCode::kBadInput || status.code() == StatusCode::kNonFinite;
  throw Error(is_input ? ErrorKind::kBadInput
                       : (status.code() == StatusCode::kDevice ? ErrorKind::kDevice : ErrorKind::kInternal),
              status.message());
}

}  // namespace

Policy::Policy(Engine& engine, const Preset& preset, std::optional<NormStats> stats, const Tokenizer* tokenizer,
               const PolicyOptions& options)
    : engine_(engine), preset_(preset), stats_(std::move(stats)), tokenizer_(tokenizer), options_(options) {
  const ModelConfig& config = engine.config();
  if (preset.variant != variant_name(config.variant)) {
    throw_bad_input("preset {} is for a {} model, but the checkpoint holds a {} model. Choose a preset of that model.",
                    preset.name, preset.variant, variant_name(config.variant));
  }
  const int64_t needed = std::max(preset.robot->state_width, preset.robot->action_width);
  if (needed > config.action_dim) {
    throw_bad_input("preset {} needs {} state and action dimensions, but the checkpoint has {}.", preset.name, needed,
                    config.action_dim);
  }
  if (stats_) require_action_width(*stats_, config.action_dim);
  if (tokenizer != nullptr && tokenizer->vocab_size() > config.vocab) {
    throw_bad_input("the tokenizer has {} pieces, but the checkpoint's embedding only {} rows.",
                    tokenizer->vocab_size(), config.vocab);
  }
}

PromptTokens Policy::tokens_of(const Observation& observation, std::span<const double> normalized_state) const {
  const auto budget = static_cast<int>(engine_.config().max_token_len);
  PromptTokens tokens;
  if (!observation.tokens.empty()) {
    tokens.ids = observation.tokens;
    if (std::ssize(tokens.ids) > budget) {
      tokens.truncated_from = static_cast<int>(tokens.ids.size());
      tokens.ids.resize(static_cast<size_t>(budget));
    }
  } else if (tokenizer_ == nullptr) {
    throw_bad_input(
        "the prompt is text, but no tokenizer was given. Give --tokenizer paligemma_tokenizer.model, or token ids.");
  } else if (preset_.prompt_form == PromptForm::kPi05) {
    tokens = tokenizer_->pi05_tokens(observation.prompt, normalized_state, budget);
  } else {
    tokens = tokenizer_->pi0_tokens(observation.prompt, budget);
  }
  if (tokens.truncated_from > 0 && options_.strict_prompt) {
    throw_bad_input("the prompt has {} tokens, but the budget is {}. Shorten it, or allow cutting.",
                    tokens.truncated_from, budget);
  }
  return tokens;
}

ActionChunk Policy::infer(const Observation& observation, std::span<const float> noise, OpTimes* times) {
  const double start = now_us();
  const ModelConfig& config = engine_.config();
  std::array<bool, kCameraSlots> given{};
  for (size_t i = 0; i < kCameraSlots; ++i) given[i] = observation.cameras[i].has_value();
  check_cameras(preset_, given);

  const std::vector<double> model_state = robot_state_in(preset_, observation.state, options_.adapter);
  const std::vector<double> normalized = stats_ ? normalize_state(*stats_, model_state) : model_state;
  const PromptTokens tokens = tokens_of(observation, normalized);
  std::vector<float> padded(static_cast<size_t>(config.action_dim), 0.0F);
  std::ranges::transform(normalized, padded.begin(), [](double value) { return static_cast<float>(value); });

  const auto side = static_cast<int>(config.vision.image_size);
  std::array<Image, kCameraSlots> resized;
  Sample sample;
  for (size_t i = 0; i < kCameraSlots; ++i) {
    if (given[i]) resized[i] = resize_with_pad(*observation.cameras[i], side, side);
    sample.cameras.push_back({resized[i].rgb.data(), DType::kU8, given[i]});
  }
  sample.tokens = tokens.ids;
  sample.state = padded;
  sample.noise = noise;

  ActionChunk chunk;
  std::vector<float> raw(static_cast<size_t>(config.horizon * config.action_dim));
  const double prepared = now_us();
  const Status status = engine_.infer({&sample, 1}, raw, times);
  if (!status.is_ok()) throw_status(status);
  const double finished = now_us();

  std::vector<double> actions(raw.begin(), raw.end());
  if (stats_) {
    actions = unnormalize_actions(*stats_, actions, config.action_dim);
    chunk.actions =
        robot_actions_out(preset_, actions, static_cast<int>(config.action_dim), model_state, options_.adapter);
  } else {
    chunk.actions = slice_columns(actions, static_cast<int>(config.action_dim), preset_.robot->action_width);
  }
  chunk.horizon = config.horizon;
  chunk.width = preset_.robot->action_width;
  chunk.truncated_from = tokens.truncated_from;
  chunk.preprocess_us = prepared - start;
  chunk.model_us = finished - prepared;
  chunk.postprocess_us = now_us() - finished;
  return chunk;
}

}  // namespace tendon
