#include "policy_options.h"

#include "checkpoint/stats_files.h"

namespace tendon::cli {

void PolicyArguments::add_to(CLI::App& app) {
  app.add_option("--preset", preset, "robot configuration, e.g. pi0_aloha, pi05_droid, pi05_libero")->required();
  app.add_option("--tokens", tokens, "token ids instead of a prompt: file or comma-separated, BOS (2) first");
  app.add_option("--tokenizer", tokenizer, "paligemma_tokenizer.model");
  app.add_flag("--strict-prompt", strict_prompt, "refuse a prompt over the budget instead of cutting it");
  app.add_option("--seed", seed, "seed of the starting noise")->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--norm-stats", norm_stats, "norm_stats.json to use instead of the checkpoint's");
  app.add_option("--asset-id", asset_id, "which of the checkpoint's statistics");
}

std::optional<NormStats> find_stats(const PolicyArguments& arguments, const LoadedModel& model, const Preset& preset,
                                    const LogSink& log) {
  StatsOptions stats;
  if (!arguments.norm_stats.empty()) stats.file = arguments.norm_stats;
  if (!arguments.asset_id.empty()) stats.asset_id = arguments.asset_id;
  stats.preset_asset_id = std::string(preset.asset_id);
  if (model.checkpoint != nullptr) return load_norm_stats(*model.checkpoint, model.config.variant, stats, log);
  if (stats.file) {
    const NormMode mode = model.config.pi05() ? NormMode::kQuantile : NormMode::kMeanStd;
    return load_openpi_norm_stats({}, mode, stats, log);
  }
  log_warning(log, "synthetic weights have no statistics: state and actions are in the network's normalised units");
  return {};
}

}  // namespace tendon::cli
