// Finds the normalisation statistics that belong to a checkpoint.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/norm_stats.h"

namespace tendon {

struct StatsOptions {
  std::optional<std::filesystem::path> file{};   // --norm-stats: a norm_stats.json, before anything else
  std::optional<std::string> asset_id{};         // --asset-id: must exist
  std::optional<std::string> preset_asset_id{};  // the preset's: settles the choice if it is among several
};

// Order: options.file; `<dir>/assets/<asset_id>/norm_stats.json` (openpi: mean/std for π0, quantile for π0.5);
// LeRobot's processor files; statistics among the weights (old LeRobot). The choice is logged. A LeRobot folder
// (config.json says so) is searched for processor files before assets. Throws Error(kBadInput) with the paths tried,
// the asset ids found and the options that override, when there are none, or several and none is chosen; and as the
// parsers below do. Never falls back to the identity.
NormStats load_norm_stats(const Checkpoint& checkpoint, Variant variant, const StatsOptions& options = {},
                          const LogSink& log = {});

// The ids under `<dir>/assets` that hold a norm_stats.json, sorted; an id may contain slashes.
std::vector<std::string> list_asset_ids(const std::filesystem::path& directory);

// `<dir>/assets/<id>/norm_stats.json` by the rule above. Throws Error(kBadInput).
NormStats load_openpi_norm_stats(const std::filesystem::path& directory, NormMode mode,
                                 const StatsOptions& options = {}, const LogSink& log = {});

// LeRobot: policy_preprocessor.json (step normalizer_processor, state) and policy_postprocessor.json (step
// unnormalizer_processor, action), each with the state_file that its step names. Throws Error(kBadInput) naming the
// file and the step, mode or tensor that is missing or unsupported.
NormStats load_lerobot_norm_stats(const std::filesystem::path& directory, const LogSink& log = {});

// Old LeRobot: Checkpoint::stats_buffers(); modes from config.norm_modes, mean/std where it says nothing.
NormStats norm_stats_from_buffers(const std::map<std::string, std::vector<double>>& buffers,
                                  const CheckpointConfig& config, const std::string& where);

// The step of a LeRobot processor file that normalises.
struct NormalizerStep {
  std::string state_file;  // plain file name; empty when the step has none
  double eps = 1e-8;
  std::map<std::string, std::string> norm_map;  // VISUAL, STATE, ACTION → MEAN_STD, QUANTILES, IDENTITY, ...
};

// Finds the step called `registry_name` in the text of a processor file. Throws Error(kBadInput) when the text is
// malformed, when no step or several have that name, or when the pipeline holds an enabled relative-action step.
NormalizerStep parse_normalizer_step(std::string_view text, const std::string& where, std::string_view registry_name);

}  // namespace tendon
