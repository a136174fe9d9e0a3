#include "calibrate.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "commands.h"
#include "engine/observe_operands.h"
#include "measure.h"
#include "replay.h"

namespace tendon::cli {
namespace {

constexpr const char* kWorkload = "workload";

void observe_workload(const CalibrateOptions& options, Session& session, OperandMaxima& maxima) {
  std::vector<float> actions;
  for (int64_t frame = 1; frame <= options.observations; ++frame) {  // not the one that `check` runs
    call(*session.engine, Workload(session.model.config, options.workload, frame), actions);
    observe_operands(session.engine->plan(), maxima);
  }
}

// So many of the answered calls at most, from all of the recording.
std::vector<RecordedCall> spread_calls(std::vector<RecordedCall> calls, int64_t most) {
  std::erase_if(calls, [](const RecordedCall& call) { return !call.error.empty(); });
  const int64_t kept = std::min(most, std::ssize(calls));
  std::vector<RecordedCall> chosen;
  for (int64_t i = 0; i < kept; ++i)
    chosen.push_back(std::move(calls[static_cast<size_t>(i * std::ssize(calls) / kept)]));
  return chosen;
}

void observe_recording(const CalibrateOptions& options, Session& session, const Preset& preset, OperandMaxima& maxima) {
  PolicyParts parts(options.policy, *session.engine, session.model, preset, {}, stderr_log());
  const std::vector<int32_t> tokens = options.policy.read_tokens(session.model.config);
  replay_calls(parts.policy(), spread_calls(read_recording(options.from), options.observations), tokens,
               [&](const RecordedCall&, const Observation& observation, std::span<const float> noise) {
                 parts.policy().infer(observation, noise);
                 observe_operands(session.engine->plan(), maxima);
               });
  if (maxima.observations == 0)
    throw_bad_input("The recording '{}' has no answered request to find scales on.", options.from);
}

}  // namespace

int run_calibrate(const ModelOptions& model, const CalibrateOptions& options) {
  if (is_scaled(parse_precision(model.precision).value()))
    throw_bad_use("--calibrate runs the model without codes: leave --precision {} out, or take bf16 or f32.",
                  model.precision);
  const bool recorded = options.from != kWorkload;
  if (recorded && options.policy.preset.empty())
    throw_bad_use("--calibrate {}: the recording's --preset is missing.", options.from);
  if (options.out.empty() && parse_synthetic(model.checkpoint))
    throw_bad_use("--calibrate: {} has no place for a file; name one with --out.", model.checkpoint);
  std::optional<PresetChoice> choice;
  if (recorded) choice.emplace(options.policy.preset);

  SessionOptions options_of_session{.preset = choice ? &choice->preset() : nullptr, .operand_taps = true};
  if (recorded) {  // the requests of a recording may continue chunks, in whatever mode: what is observed comes before
    options_of_session.chunking = [](int64_t steps) {
      return Chunking{.mode = ChunkingMode::kGuided, .max_guidance = static_cast<float>(steps)};
    };
  }
  Session session = open_session(model, options_of_session);
  OperandMaxima maxima = no_maxima(session.model.config);
  maxima.weights = weights_mark(session.model.weights);
  if (recorded) {
    observe_recording(options, session, choice->preset(), maxima);
  } else {
    observe_workload(options, session, maxima);
  }
  const std::filesystem::path out =
      options.out.empty() ? static_scales_file(model.checkpoint) : std::filesystem::path(options.out);
  write_maxima(maxima, out);
  fmt::print("static scales of {} observations in {}\n", maxima.observations, out.string());
  fmt::print("how far they are from f32: tendon check --checkpoint {} --precision int8 --scales {}\n", model.checkpoint,
             options.out.empty() ? "static" : options.out);
  return kExitOk;
}

}  // namespace tendon::cli
