// From a robot's observation to its actions, in openpi's words: adapt, normalise, tokenise, run, unnormalise, adapt.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/norm_stats.h"
#include "engine/engine.h"
#include "policy/adapters.h"
#include "policy/chunking.h"
#include "policy/files/image.h"
#include "policy/preset/presets.h"
#include "policy/tokenizer.h"

namespace tendon {

// Pictures in the engine's pool (Engine::frames), model order.
using CameraFrames = std::array<PooledFrame, kCameraSlots>;

struct Observation {
  std::array<std::optional<Image>, kCameraSlots> cameras;        // model order; any size, they are resized with padding
  std::array<std::optional<ImageView>, kCameraSlots> lent = {};  // in their place: kept by the caller until the call
                                                                 // has returned
  std::vector<double> state;                                     // the robot's units and width
  std::string prompt;                                            // used when `tokens` is empty
  std::vector<int32_t> tokens;                                   // ready token ids, BOS first
  std::optional<PreviousActions> previous = {};                  // real-time chunking, where the engine has it
};

struct PolicyOptions {
  AdapterOptions adapter;
  bool strict_prompt = false;  // refuse a prompt that is longer than the budget instead of cutting it
  ChunkingRules chunking = {};
};

// An observation as the network takes it.
struct PreparedObservation {
  std::array<Image, kCameraSlots> images;         // of the model's size; empty where masked, or in a frame
  CameraFrames frames;                            // pictures that the engine scales
  std::array<ImageView, kCameraSlots> lent = {};  // of the model's size, kept by whoever lent them; or none
  std::array<bool, kCameraSlots> active{};        // false: masked
  std::vector<int32_t> tokens;
  std::vector<float> state;                  // normalised, zero-padded to action_dim
  std::vector<double> model_state;           // unnormalised, what relative actions are added to
  int truncated_from = 0;                    // tokens of a prompt that was cut; 0 if none was
  std::optional<ChunkOverlap> overlap = {};  // with a previous chunk, and then
  std::vector<float> previous, guidance;     // (H, action_dim): engine/sample.h
  double preprocess_us = 0;

  bool has_lent() const {
    return std::ranges::any_of(lent, [](const ImageView& view) { return view.bytes; });
  }
  int64_t views() const { return std::ranges::count(active, true); }
  Sample sample(std::span<const float> noise) const;
};

struct ActionChunk {
  int64_t horizon = 0, width = 0;
  std::vector<double> actions;               // (horizon, width), the robot's units; normalised units without statistics
  int truncated_from = 0;                    // tokens of a prompt that was cut; 0 if none was
  std::optional<ChunkOverlap> overlap = {};  // of a call with a previous chunk
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

  // The two parts of infer. prepare can run on several threads at once, also while infer runs; it checks all that infer
  // would refuse but the noise. `frames`: pictures in place of the observation's. Where the engine has a pool, pictures
  // of other sizes than the model's go there. infer takes a batch, noise (B, H, action_dim) f32, and gives a chunk for
  // each.
  PreparedObservation prepare(Observation observation, CameraFrames frames = {}) const;
  std::vector<ActionChunk> infer(std::span<const PreparedObservation* const> batch, std::span<const float> noise,
                                 OpTimes* times = nullptr);

  const Preset& preset() const { return preset_; }
  const Engine& engine() const { return engine_; }
  bool has_stats() const { return stats_.has_value(); }

 private:
  std::vector<double> robot_actions(std::span<const float> raw, std::span<const double> model_state) const;
  void add_previous(const PreviousActions& previous, PreparedObservation& prepared) const;
  PromptTokens tokens_of(const Observation& observation, std::span<const double> normalized_state) const;

  Engine& engine_;
  const Preset& preset_;
  std::optional<NormStats> stats_;
  const Tokenizer* tokenizer_;
  PolicyOptions options_;
};

}  // namespace tendon
