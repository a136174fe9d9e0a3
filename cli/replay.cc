#include "replay.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"
#include "commands.h"
#include "engine/noise.h"
#include "server/policy/observation.h"
#include "server/record.h"
#include "session.h"
#include "wire/message.h"

namespace tendon::cli {
namespace {

std::vector<double> recorded_actions(const RecordedCall& call) {
  const WireValue reply = decode_message(std::as_bytes(std::span(call.reply)));
  const auto* map = reply.get_if<WireMap>();
  const WireValue* const actions = map == nullptr ? nullptr : find_key(*map, "actions");
  if (actions == nullptr) throw_bad_input("the recorded reply {} has no 'actions'.", call.number);
  return to_numbers(*actions, "actions");
}

// Infinite when the sizes differ.
double largest_difference(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace

int64_t replay_calls(
    const Policy& policy, const std::vector<RecordedCall>& calls, const std::vector<int32_t>& tokens,
    const std::function<void(const RecordedCall&, const Observation&, std::span<const float> noise)>& f) {
  const ModelConfig& config = policy.engine().config();
  RequestDefaults defaults{.prompt = {},
                           .tokens = tokens,
                           .horizon = config.horizon,
                           .action_dim = config.action_dim,
                           .chunking = policy.engine().options().chunking.has_value()};
  if (!policy.preset().default_prompt.empty()) defaults.prompt = std::string(policy.preset().default_prompt);
  int64_t failed = 0;
  std::vector<float> noise(static_cast<size_t>(config.horizon * config.action_dim));
  for (const RecordedCall& call : calls) {
    if (!call.error.empty()) {
      ++failed;
      continue;
    }
    const RobotRequest request =
        read_request(decode_message(std::as_bytes(std::span(call.request))), policy.preset(), defaults);
    if (request.noise) {
      noise = *request.noise;
    } else if (call.draw) {
      fill_noise(call.seed, static_cast<uint64_t>(*call.draw), noise);
    } else {
      throw_bad_input("call {} of the recording has neither noise nor the number of a draw.", call.number);
    }
    f(call, request.observation, noise);
  }
  return failed;
}

int run_replay(Policy& policy, const ReplayOptions& options) {
  const std::vector<RecordedCall> calls = read_recording(options.directory);
  int64_t run = 0, equal = 0, outside = 0;
  double worst = 0;
  int64_t worst_call = -1;
  const auto compare = [&](const RecordedCall& call, const Observation& observation, std::span<const float> noise) {
    const ActionChunk chunk = policy.infer(observation, noise);
    const double difference = largest_difference(chunk.actions, recorded_actions(call));
    ++run;
    if (difference == 0) ++equal;
    if (difference > options.tolerance) ++outside;
    if (difference > worst) {
      worst = difference;
      worst_call = call.number;
    }
  };
  const int64_t failed = replay_calls(policy, calls, options.tokens, compare);
  if (options.json) {
    write_json({{"calls", calls.size()},
                {"run", run},
                {"equal", equal},
                {"outside", outside},
                {"recorded_errors", failed},
                {"tolerance", options.tolerance},
                {"largest_difference", worst}},
               {});
  } else {
    fmt::print(
        "{} calls: {} run, {} equal to the last bit, {} outside the tolerance of {:g}; {} recorded errors left out\n",
        calls.size(), run, equal, outside, options.tolerance, failed);
    if (worst_call >= 0) fmt::print("largest difference {:g}, in call {}\n", worst, worst_call);
  }
  return outside == 0 ? kExitOk : kExitCheckFailed;
}

}  // namespace tendon::cli
