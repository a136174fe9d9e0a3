// What `run`, `serve` and `tune --calibrate` share: the options around the model that make it a policy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "engine/engine.h"
#include "engine/load.h"
#include "model/forward.h"
#include "policy/chunking.h"
#include "policy/policy.h"
#include "policy/preset/preset_file.h"
#include "policy/preset/presets.h"

namespace tendon::cli {

struct PolicyArguments {
  std::string preset, tokens, tokenizer, norm_stats, asset_id;
  uint64_t seed = 0;
  bool strict_prompt = false;
  std::string resize;  // empty: card where there is one

  void add_to(CLI::App& app, bool preset_required = true);
  // The ids of --tokens; none without it.
  std::vector<int32_t> read_tokens(const ModelConfig& config) const;
  // EngineOptions::frame_bytes for batches of so many pictures.
  size_t frame_bytes(int64_t pictures) const;
  // Throws Error(kBadUse) when the card shall resize and there is none; else says who does.
  void report_resize(const Engine& engine, const LogSink& log) const;
};

// Real-time chunking, off unless a mode is given.
struct ChunkingArguments {
  std::string mode = "off", schedule = "exp";
  std::optional<double> max_guidance;  // default: the number of steps
  std::optional<int64_t> max_delay;

  void add_to(CLI::App& app);
  // Throws Error(kBadUse) for options that do not go together.
  std::optional<Chunking> engine(int64_t steps) const;
  ChunkingRules rules() const;
};

// A policy with what it points to. Its statistics are those that the options, the preset and the checkpoint lead to;
// none, with a warning, for synthetic weights.
class PolicyParts {
 public:
  // Throws what opening its files and Policy throw.
  PolicyParts(const PolicyArguments& arguments, Engine& engine, const LoadedModel& model, const Preset& preset,
              const ChunkingRules& chunking, const LogSink& log);
  PolicyParts(const PolicyParts&) = delete;
  PolicyParts& operator=(const PolicyParts&) = delete;
  Policy& policy() { return *policy_; }

 private:
  std::optional<Tokenizer> tokenizer_;
  std::optional<Policy> policy_;
};

}  // namespace tendon::cli
