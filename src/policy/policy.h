// From a robot's observation to its actions, in openpi's words: adapt, normalise, tokenise, run, unnormalise, adapt.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/norm_stats.h"
#include "engine/engine.h"
#include "policy/adapters.h"
#include "policy/image.h"
#include "policy/presets.h"
#include "policy/tokenizer.h"

namespace tendon {

struct Observation {
  std::array<std::optional<Image>, kCameraSlots> cameras;  // model order; any size, they are resized with padding
  std::vector<double> state;                               // the robot's units and width
  std::string prompt;                                      // used when `tokens` is empty
  std::vector<int32_t> tokens;                             // ready token ids, BOS first
};

struct PolicyOptions {
  AdapterOptions adapter;
  bool strict_prompt = false;  // refuse a prompt that is longer than the budget instead of cutting it
};

struct ActionChunk {
  int64_t horizon = 0, width = 0;
  std::vector<double> actions;  // (horizon, width), the robot's units; normalised units without statistics
  int truncated_from = 0;       // tokens of a prompt that was cut; 0 if none was
  double preprocess_us = 0, model_us = 0, postprocess_us = 0;  // wall time
};

class Policy {
 public:
  // Without `stats` the state is taken and the actions are given as the network has them (normalised units, padded
  // width cut to the robot's); for synthetic weights only, the caller says so. `tokenizer` may be null when every
  // observation brings token ids. All must outlive the policy. Throws Error(kBadInput) when preset, statistics and
  // checkpoint do not fit together.
  Policy(Engine& engine, const Preset& preset, std::optional<NormStats> stats, const Tokenizer* tokenizer,
         const PolicyOptions& options = {});

  // `noise` (H, action_dim) f32. Throws Error(kBadInput) naming the key at fault, Error(kDevice) for device trouble.
  ActionChunk infer(const Observation& observation, std::span<const float> noise, OpTimes* times = nullptr);

 private:
  PromptTokens tokens_of(const Observation& observation, std::span<const double> normalized_state) const;

  Engine& engine_;
  const Preset& preset_;
  std::optional<NormStats> stats_;
  const Tokenizer* tokenizer_;
  PolicyOptions options_;
};

}  // namespace tendon
