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

Sample PreparedObservation::sample(std::span<const float> noise) const {
  Sample sample;
  for (size_t i = 0; i < images.size(); ++i) {
    const void* const pixels = lent[i].bytes != nullptr ? lent[i].bytes : images[i].rgb.data();
    sample.cameras.push_back({pixels, DType::kU8, active[i], frames[i] ? &frames[i] : nullptr, lent[i].planar});
  }
  sample.tokens = tokens;
  sample.state = state;
  sample.noise = noise;
  if (overlap) sample.previous = {previous, guidance, overlap->delay};
  return sample;
}

// From the robot's units to the network's: relative to the state of now, whatever it was when the chunk was made.
void Policy::add_previous(const PreviousActions& previous, PreparedObservation& prepared) const {
  const ModelConfig& config = engine_.config();
  if (!engine_.options().chunking)
    throw_bad_input("a previous chunk was given, but this policy was opened without real-time chunking.");
  const int64_t width = preset_.robot->action_width;
  prepared.overlap = check_previous(previous, width, config.horizon, options_.chunking);
  const std::vector<double> rows = aligned_rows(previous, width, config.horizon);
  const std::vector<double> raw =
      stats_ ? robot_actions_in(preset_, rows, prepared.model_state, options_.adapter) : rows;
  std::vector<double> padded(static_cast<size_t>(config.horizon * config.action_dim), 0.0);
  for (int64_t i = 0; i < config.horizon; ++i)
    std::copy_n(raw.begin() + i * width, width, padded.begin() + i * config.action_dim);
  if (stats_) padded = normalize_actions(*stats_, padded, config.action_dim);

  // What the robot does not have, the model was trained to give as 0; nothing pulls it there.
  prepared.previous.assign(padded.size(), 0.0F);
  prepared.guidance.assign(padded.size(), 0.0F);
  const std::vector<double> weights =
      guidance_weights(options_.chunking.schedule, prepared.overlap->delay, prepared.overlap->overlap, config.horizon);
  for (int64_t i = 0; i < config.horizon; ++i) {
    for (int64_t k = 0; k < width; ++k) {
      const auto at = static_cast<size_t>(i * config.action_dim + k);
      prepared.previous[at] = static_cast<float>(padded[at]);
      prepared.guidance[at] = static_cast<float>(weights[static_cast<size_t>(i)]);
    }
  }
}

PreparedObservation Policy::prepare(Observation observation, CameraFrames frames) const {
  const double start = now_us();
  const ModelConfig& config = engine_.config();
  PreparedObservation prepared;
  prepared.frames = std::move(frames);
  for (size_t i = 0; i < kCameraSlots; ++i)
    prepared.active[i] = observation.cameras[i].has_value() || observation.lent[i].has_value() || prepared.frames[i];
  check_cameras(preset_, prepared.active);

  prepared.model_state = robot_state_in(preset_, observation.state, options_.adapter);
  const std::vector<double> normalized = stats_ ? normalize_state(*stats_, prepared.model_state) : prepared.model_state;
  PromptTokens tokens = tokens_of(observation, normalized);
  prepared.tokens = std::move(tokens.ids);
  prepared.truncated_from = tokens.truncated_from;
  prepared.state.assign(static_cast<size_t>(config.action_dim), 0.0F);
  std::ranges::transform(normalized, prepared.state.begin(), [](double value) { return static_cast<float>(value); });

  if (observation.previous) add_previous(*observation.previous, prepared);

  const auto side = static_cast<int>(config.vision.image_size);
  for (size_t i = 0; i < kCameraSlots; ++i) {
    if (!prepared.active[i] || prepared.frames[i]) continue;
    const bool is_lent = observation.lent[i].has_value();
    const ImageView given = is_lent ? *observation.lent[i] : view_of(*observation.cameras[i]);
    if (given.height == side && given.width == side) {
      if (is_lent) {
        prepared.lent[i] = given;
      } else {
        prepared.images[i] = std::move(*observation.cameras[i]);
      }
      continue;
    }
    if (engine_.frames() != nullptr) prepared.frames[i] = put_frame(*engine_.frames(), given, side);
    if (!prepared.frames[i]) prepared.images[i] = resize_with_pad(given, side, side);
  }
  const std::vector<float> no_noise(static_cast<size_t>(config.horizon * config.action_dim));
  if (const Status status = engine_.check(prepared.sample(no_noise), 0); !status.is_ok()) throw_status(status);
  prepared.preprocess_us = now_us() - start;
  return prepared;
}

std::vector<double> Policy::robot_actions(std::span<const float> raw, std::span<const double> model_state) const {
  const auto width = static_cast<int>(engine_.config().action_dim);
  const std::vector<double> actions(raw.begin(), raw.end());
  if (!stats_) return slice_columns(actions, width, preset_.robot->action_width);
  return robot_actions_out(preset_, unnormalize_actions(*stats_, actions, width), width, model_state, options_.adapter);
}

std::vector<ActionChunk> Policy::infer(std::span<const PreparedObservation* const> batch, std::span<const float> noise,
                                       OpTimes* times) {
  const ModelConfig& config = engine_.config();
  const auto values = static_cast<size_t>(config.horizon * config.action_dim);
  std::vector<Sample> samples;
  // A wrong length is refused by the engine, with both numbers.
  for (size_t i = 0; i < batch.size(); ++i) {
    samples.push_back(batch[i]->sample(batch.size() == 1 ? noise : noise.subspan(i * values, values)));
  }
  std::vector<float> raw(batch.size() * values);
  const double start = now_us();
  if (const Status status = engine_.infer(samples, raw, times); !status.is_ok()) throw_status(status);
  const double model_us = now_us() - start;

  std::vector<ActionChunk> chunks;
  for (size_t i = 0; i < batch.size(); ++i) {
    const double finished = now_us();
    ActionChunk& chunk = chunks.emplace_back();
    chunk.actions = robot_actions(std::span(raw).subspan(i * values, values), batch[i]->model_state);
    chunk.horizon = config.horizon;
    chunk.width = preset_.robot->action_width;
    chunk.truncated_from = batch[i]->truncated_from;
    chunk.overlap = batch[i]->overlap;
    chunk.preprocess_us = batch[i]->preprocess_us;
    chunk.model_us = model_us;
    chunk.postprocess_us = now_us() - finished;
  }
  return chunks;
}

ActionChunk Policy::infer(const Observation& observation, std::span<const float> noise, OpTimes* times) {
  const PreparedObservation prepared = prepare(observation);
  const PreparedObservation* const batch[] = {&prepared};
  return std::move(infer(batch, noise, times).front());
}

}  // namespace tendon
