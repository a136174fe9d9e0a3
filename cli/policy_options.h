// What `run` and `serve` share: the options around the model that make it a policy.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "checkpoint/norm_stats.h"
#include "engine/load.h"
#include "policy/presets.h"

namespace tendon::cli {

struct PolicyArguments {
  std::string preset, tokens, tokenizer, norm_stats, asset_id;
  uint64_t seed = 0;
  bool strict_prompt = false;

  void add_to(CLI::App& app);
};

// The statistics that the options, the preset and the checkpoint lead to; none, with a warning, for synthetic weights.
std::optional<NormStats> find_stats(const PolicyArguments& arguments, const LoadedModel& model, const Preset& preset,
                                    const LogSink& log);

}  // namespace tendon::cli
