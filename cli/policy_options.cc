#include "policy_options.h"

#include <algorithm>

#include "base/check.h"
#include "checkpoint/stats_files.h"
#include "policy/files/state_file.h"

namespace tendon::cli {
namespace {

std::optional<NormStats> find_stats(const PolicyArguments& arguments, const LoadedModel& model, const Preset& preset,
                                    const LogSink& log) {
  StatsOptions stats;
  if (!arguments.norm_stats.empty()) stats.file = arguments.norm_stats;
  if (!arguments.asset_id.empty()) stats.asset_id = arguments.asset_id;
  if (!preset.asset_id.empty()) stats.preset_asset_id = std::string(preset.asset_id);
  if (model.checkpoint != nullptr) return load_norm_stats(*model.checkpoint, model.config.variant, stats, log);
  if (stats.file) {
    const NormMode mode = model.config.pi05() ? NormMode::kQuantile : NormMode::kMeanStd;
    return load_openpi_norm_stats({}, mode, stats, log);
  }
  log_warning(log, "synthetic weights have no statistics: state and actions are in the network's normalised units");
  return {};
}

}  // namespace

void PolicyArguments::add_to(CLI::App& app, bool preset_required) {
  app.add_option(
         "--preset", preset,
         "robot configuration, e.g. pi0_aloha, pi05_droid, pi05_libero, or a .json file of your own (docs/serving.md)")
      ->required(preset_required);
  app.add_option("--tokens", tokens, "token ids instead of a prompt: file or comma-separated, BOS (2) first");
  app.add_option("--tokenizer", tokenizer, "paligemma_tokenizer.model");
  app.add_flag("--strict-prompt", strict_prompt, "refuse a prompt over the budget instead of cutting it");
  app.add_option("--seed", seed, "seed of the starting noise")->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--norm-stats", norm_stats, "norm_stats.json to use instead of the checkpoint's");
  app.add_option("--asset-id", asset_id, "which of the checkpoint's statistics");
  app.add_option("--resize", resize,
                 "host | card: who scales pictures of other sizes (default: the card, if there is one)")
      ->check(CLI::IsMember({"host", "card"}));
}

std::vector<int32_t> PolicyArguments::read_tokens(const ModelConfig& config) const {
  return tokens.empty() ? std::vector<int32_t>{} : parse_tokens(tokens, static_cast<int>(config.vocab));
}

// Twice the pictures of a batch, for requests that wait, of 1080p with their tables.
size_t PolicyArguments::frame_bytes(int64_t pictures) const {
  constexpr size_t kPictureBytes = (size_t{1080} * 1920 * 3) + (size_t{64} << 10);
  constexpr size_t kMost = size_t{512} << 20;
  return resize == "host" ? 0 : std::min(kMost, 2 * static_cast<size_t>(pictures) * kPictureBytes);
}

void PolicyArguments::report_resize(const Engine& engine, const LogSink& log) const {
  if (engine.frames() != nullptr) {
    log_info(log, "pictures of other sizes are resized on the card, from {} MB of page-locked memory",
             engine.options().frame_bytes >> 20);
  } else if (resize == "card") {
    throw_bad_use("--resize card: the {} backend has no card. Leave it out, or choose another backend.",
                  engine.backend().name());
  }
}

void ChunkingArguments::add_to(CLI::App& app) {
  app.add_option("--rtc", mode,
                 "real-time chunking for requests with a previous chunk: off | guided | inpaint | trained (a model "
                 "trained with the first actions at time 0)")
      ->check(CLI::IsMember({"off", "guided", "inpaint", "trained"}))
      ->capture_default_str();
  app.add_option("--rtc-schedule", schedule, "guided: weights between delay and end of the overlap")
      ->check(CLI::IsMember({"exp", "linear", "ones", "zeros"}))
      ->capture_default_str();
  app.add_option("--rtc-max-guidance", max_guidance, "guided: largest factor of the guidance (default: the steps)")
      ->check(CLI::Range(0.0, 1000.0));
  app.add_option("--rtc-max-delay", max_delay, "longest delay in rows; needed for trained: the one of the training")
      ->check(CLI::Range(0, 10000));
}

std::optional<Chunking> ChunkingArguments::engine(int64_t steps) const {
  if (mode == "off") return {};
  if (mode == "trained" && !max_delay) {
    throw_bad_use(
        "--rtc trained needs --rtc-max-delay: the longest delay, in rows, that the model was trained with. A model "
        "that "
        "was not trained so wants --rtc guided.");
  }
  Chunking chunking{.mode = mode == "guided"    ? ChunkingMode::kGuided
                            : mode == "inpaint" ? ChunkingMode::kInpaint
                                                : ChunkingMode::kTrained,
                    .max_guidance = static_cast<float>(max_guidance.value_or(static_cast<double>(steps)))};
  return chunking;
}

ChunkingRules ChunkingArguments::rules() const {
  const auto* const name = std::ranges::find(kGuidanceScheduleNames, schedule);
  return {.schedule = static_cast<GuidanceSchedule>(name - std::begin(kGuidanceScheduleNames)), .max_delay = max_delay};
}

PolicyParts::PolicyParts(const PolicyArguments& arguments, Engine& engine, const LoadedModel& model,
                         const Preset& preset, const ChunkingRules& chunking, const LogSink& log) {
  if (!arguments.tokenizer.empty()) tokenizer_.emplace(arguments.tokenizer);
  policy_.emplace(engine, preset, find_stats(arguments, model, preset, log), tokenizer_ ? &*tokenizer_ : nullptr,
                  PolicyOptions{.adapter = {}, .strict_prompt = arguments.strict_prompt, .chunking = chunking});
}

}  // namespace tendon::cli
