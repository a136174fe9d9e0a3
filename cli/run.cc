// tendon run: one observation in, one action chunk out.
#include <array>

#include <fmt/format.h>

#include "base/check.h"
#include "buckets.h"
#include "commands.h"
#include "engine/noise.h"
#include "policy/files/npy.h"
#include "policy/files/state_file.h"
#include "policy/policy.h"
#include "policy_options.h"
#include "replay.h"
#include "session.h"

namespace tendon::cli {
namespace {

struct RunOptions {
  ModelOptions model;
  PolicyArguments policy;
  ChunkingArguments chunking;
  ReplayOptions replay;
  BucketOptions buckets;
  std::string state, prompt, noise, out;
  std::vector<std::string> images;
  bool json = false;
};

Observation read_observation(const RunOptions& options, const Preset& preset, const ModelConfig& config) {
  Observation observation;
  for (const std::string& given : options.images) {
    const size_t equals = given.find('=');
    if (equals == std::string::npos)
      throw_bad_use("--image {}: write CAMERA=FILE, for instance --image base=front.jpg.", given);
    const int slot = camera_slot(preset, given.substr(0, equals));
    std::optional<Image>& camera = observation.cameras[static_cast<size_t>(slot)];
    if (camera) throw_bad_use("--image {}: this camera was given twice.", given);
    camera = load_image(given.substr(equals + 1));
  }
  if (!options.state.empty()) {
    observation.state = parse_state(options.state, preset.robot->state_width);
  } else {
    throw_bad_use("--state is missing: a file or a comma-separated list of {} numbers ({}).", preset.robot->state_width,
                  preset.robot->state_meaning);
  }
  if (!options.policy.tokens.empty()) {
    observation.tokens = options.policy.read_tokens(config);
  } else {
    observation.prompt = options.prompt.empty() ? std::string(preset.default_prompt) : options.prompt;
    if (observation.prompt.empty())
      throw_bad_use("The prompt is missing: give --prompt TEXT with --tokenizer FILE, or --tokens IDS.");
  }
  return observation;
}

void print_table(const ActionChunk& chunk) {
  for (int64_t row = 0; row < chunk.horizon; ++row) {
    fmt::print("{:>4}", row);
    for (int64_t column = 0; column < chunk.width; ++column)
      fmt::print(" {:>8.4f}", chunk.actions[static_cast<size_t>(row * chunk.width + column)]);
    fmt::print("\n");
  }
}

int run_run(const RunOptions& options) {
  const bool replays = !options.replay.directory.empty();
  if (replays && !options.images.empty()) throw_bad_use("--replay has its own pictures: leave --image out.");
  if (!replays && options.images.empty())
    throw_bad_use("--image is missing: CAMERA=FILE, for instance --image base=front.jpg; once per camera.");
  const PresetChoice choice(options.policy.preset);
  const Preset& preset = choice.preset();
  if (!options.out.empty() && !options.out.ends_with(".npy") && !options.out.ends_with(".json")) {
    throw_bad_use("--out {}: the name must end in .npy or .json.", options.out);
  }
  if (options.policy.tokens.empty() && options.policy.tokenizer.empty())
    throw_bad_use("Give --tokenizer FILE with a text prompt, or --tokens IDS.");
  const LogSink log = stderr_log();
  SessionOptions session_options{.preset = &preset, .prepared = options.buckets.parse(), .serving_lengths = replays};
  session_options.chunking = [&](int64_t steps) { return options.chunking.engine(steps); };
  session_options.frame_bytes = options.policy.frame_bytes(kCameraSlots);
  const Session session = open_session(options.model, session_options);
  options.policy.report_resize(*session.engine, log);
  const ModelConfig& config = session.model.config;

  PolicyParts parts(options.policy, *session.engine, session.model, preset, options.chunking.rules(), log);
  Policy& policy = parts.policy();
  if (replays) {
    ReplayOptions replay = options.replay;
    replay.json = options.json;
    replay.tokens = options.policy.read_tokens(config);
    return run_replay(policy, replay);
  }
  const Observation observation = read_observation(options, preset, config);
  std::vector<float> noise(static_cast<size_t>(config.horizon * config.action_dim));
  if (options.noise.empty()) {
    fill_noise(options.policy.seed, 0, noise);
  } else {
    noise = read_noise(options.noise, static_cast<int>(config.horizon), static_cast<int>(config.action_dim));
  }

  OpTimes times;
  const ActionChunk chunk = policy.infer(observation, noise, &times);
  if (chunk.truncated_from > 0) {
    log_warning(log, "the prompt has {} tokens, more than the budget of {}: cut on the right", chunk.truncated_from,
                config.max_token_len);
  }
  const std::vector<StageTime> stages = stage_times(session.engine->plan(), times);
  const MemoryUse memory = memory_use();

  nlohmann::ordered_json json = {{"preset", preset.name},
                                 {"shape", {chunk.horizon, chunk.width}},
                                 {"units", policy.has_stats() ? "robot" : "normalised"},
                                 {"actions", nlohmann::json::array()}};
  for (int64_t row = 0; row < chunk.horizon; ++row) {
    const auto begin = chunk.actions.begin() + row * chunk.width;
    json["actions"].push_back(std::vector<double>(begin, begin + chunk.width));
  }
  json["ms"] = {{"preprocess", chunk.preprocess_us * 1e-3},
                {"model", chunk.model_us * 1e-3},
                {"postprocess", chunk.postprocess_us * 1e-3}};
  for (const StageTime& stage : stages) json["ms"]["stages"][stage.name] = stage.us * 1e-3;
  json["seconds"] = {{"load", session.load_s}, {"ready", session.ready_s}};
  json["peak_memory_bytes"] = memory.peak;

  if (options.out.ends_with(".npy")) {
    const std::array<int64_t, 2> shape{chunk.horizon, chunk.width};
    write_npy(options.out, shape, std::span<const double>(chunk.actions));
  } else if (!options.out.empty()) {
    write_json(json, options.out);
  }
  if (options.json) {
    write_json(json, {});
    return kExitOk;
  }
  fmt::print("actions ({}, {}), {} units, rows are control steps\n", chunk.horizon, chunk.width,
             policy.has_stats() ? "robot" : "normalised");
  print_table(chunk);
  fmt::print("\n{:<12} {:>10}\n", "stage", "ms");
  fmt::print("{:<12} {:>10.2f}\n", "preprocess", chunk.preprocess_us * 1e-3);
  for (const StageTime& stage : stages) fmt::print("{:<12} {:>10.2f}\n", stage.name, stage.us * 1e-3);
  fmt::print("{:<12} {:>10.2f}   the whole call, plan making of this first call included\n", "model",
             chunk.model_us * 1e-3);
  fmt::print("{:<12} {:>10.2f}\n\n", "postprocess", chunk.postprocess_us * 1e-3);
  fmt::print("memory: peak {:.2f} GB of this process\n", static_cast<double>(memory.peak) * 1e-9);
  fmt::print("served: a process that keeps the model loaded (tendon serve) answers {:.3g} calls a second\n",
             1e6 / chunk.model_us);
  return kExitOk;
}

}  // namespace

Command add_run(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  options->model.add_to(app);
  options->policy.add_to(app);
  options->chunking.add_to(app);
  options->buckets.add_to(app);
  app.add_option("--image", options->images, "CAMERA=FILE (JPEG or PNG), e.g. base=front.jpg; once per camera");
  app.add_option("--replay", options->replay.directory,
                 "a recording of tendon serve --record: run its requests again and compare the actions");
  app.add_option("--tolerance", options->replay.tolerance, "with --replay: difference that an action may have")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--state", options->state, "file (JSON, CSV) or comma-separated numbers, the robot's units");
  app.add_option("--prompt", options->prompt, "task text (needs --tokenizer)");
  app.add_option("--noise", options->noise, "starting noise (H, action_dim) as .npy");
  app.add_option("--out", options->out, "also write the actions to a .json or .npy file");
  app.add_flag("--json", options->json, "machine-readable output");
  return [options] { return run_run(*options); };
}

}  // namespace tendon::cli
