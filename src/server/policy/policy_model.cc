#include "server/policy/policy_model.h"

#include <chrono>

#include "engine/noise.h"
#include "server/policy/pictures_ahead.h"
#include "wire/message.h"

namespace tendon {
namespace {

constexpr double kCutLogInterval_s = 10;
constexpr double kSensorInterval_s = 5;
constexpr double kBusySensorInterval_s = 30;  // when requests always wait, one of them waits for the sensors as well

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct PolicyJob : Job {
  PreparedObservation observation;
  std::vector<float> noise;  // empty: drawn when it runs
};

}  // namespace

std::vector<int64_t> possible_views(const Preset& preset) {
  int64_t required = 0, optional = 0;
  for (const CameraSlot& camera : preset.robot->cameras) {
    if (camera.use == CameraUse::kRequired) ++required;
    if (camera.use == CameraUse::kOptional) ++optional;
  }
  std::vector<int64_t> views;
  for (int64_t i = required; i <= required + optional; ++i) {
    if (i > 0) views.push_back(i);
  }
  return views;
}

std::vector<size_t> batch_sizes_up_to(size_t max_batch) {
  std::vector<size_t> sizes;
  for (size_t size = 1; size < max_batch; size *= 2) sizes.push_back(size);
  sizes.push_back(std::max<size_t>(max_batch, 1));
  return sizes;
}

PolicyModel::PolicyModel(Policy& policy, Metrics& metrics, const PolicyModelOptions& options, const LogSink& log)
    : policy_(policy), metrics_(metrics), options_(options), log_(log) {
  const ModelConfig& config = policy.engine().config();
  options_.defaults.horizon = config.horizon;
  options_.defaults.action_dim = config.action_dim;
  options_.defaults.image_side = static_cast<int>(config.vision.image_size);
  options_.defaults.frames = policy.engine().frames();
  options_.defaults.chunking = policy.engine().options().chunking.has_value();
}

void PolicyModel::warm_up() {
  const Preset& preset = policy_.preset();
  const auto side = static_cast<int>(policy_.engine().config().vision.image_size);
  const auto pixels = static_cast<size_t>(side) * static_cast<size_t>(side) * 3;
  const auto run = [&](const PreparedObservation& prepared) {
    for (const size_t size : options_.batch_sizes) {
      const std::vector<const PreparedObservation*> batch(size, &prepared);
      const std::vector<float> noise(size *
                                     static_cast<size_t>(options_.defaults.horizon * options_.defaults.action_dim));
      policy_.infer(batch, noise);
    }
  };
  for (const int64_t views : possible_views(preset)) {
    Observation observation;
    int64_t given = 0;
    for (const CameraUse wanted : {CameraUse::kRequired, CameraUse::kOptional}) {
      for (size_t i = 0; i < kCameraSlots; ++i) {
        if (preset.robot->cameras[i].use != wanted || given == views) continue;
        observation.cameras[i] = Image{side, side, std::vector<uint8_t>(pixels, 127)};
        ++given;
      }
    }
    observation.state.assign(static_cast<size_t>(preset.robot->state_width), 0.0);
    observation.tokens = options_.defaults.tokens.empty() ? std::vector<int32_t>{kBosToken} : options_.defaults.tokens;
    run(policy_.prepare(observation));
    if (!options_.defaults.chunking) continue;
    observation.previous.emplace();
    observation.previous->rows = 1;
    observation.previous->actions.assign(static_cast<size_t>(preset.robot->action_width), 0.0);
    run(policy_.prepare(std::move(observation)));
  }
  idle();  // the first reading, before anybody waits
}

std::shared_ptr<Intake> PolicyModel::begin() {
  return std::make_shared<PicturesAhead>(policy_.preset(), options_.defaults);
}

std::unique_ptr<Job> PolicyModel::prepare(std::span<const std::byte> message, Intake* intake) {
  const double start = now_us();
  auto* const ahead = static_cast<PicturesAhead*>(intake);
  const WireValue decoded = decode_message(message);
  if (ahead != nullptr) ahead->finish(message, decoded);
  RobotRequest request = read_request(decoded, policy_.preset(), options_.defaults, ahead);
  auto job = std::make_unique<PolicyJob>();
  job->observation = policy_.prepare(std::move(request.observation), std::move(request.frames));
  if (request.noise) job->noise = std::move(*request.noise);
  job->reads_message = job->observation.has_lent();
  job->group = 2 * job->observation.views() + (job->observation.overlap ? 1 : 0);
  job->prepare_us = now_us() - start;
  if (job->observation.truncated_from > 0) report_cut(job->observation.truncated_from);
  return job;
}

std::vector<Outcome> PolicyModel::infer(std::span<Job* const> batch) {
  if (now_us() * 1e-6 - last_sensors_s_ > kBusySensorInterval_s) idle();
  const auto values = static_cast<size_t>(options_.defaults.horizon * options_.defaults.action_dim);
  std::vector<const PreparedObservation*> observations;
  std::vector<float> noise(batch.size() * values);
  std::vector<Outcome> outcomes(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto& job = static_cast<const PolicyJob&>(*batch[i]);
    observations.push_back(&job.observation);
    const std::span<float> own = std::span(noise).subspan(i * values, values);
    if (job.noise.empty()) {
      outcomes[i].draw = static_cast<int64_t>(drawn_);
      fill_noise(options_.seed, drawn_++, own);
    } else {
      std::ranges::copy(job.noise, own.begin());
    }
  }
  const auto run = [&](size_t first, size_t count) {
    std::vector<ActionChunk> chunks = policy_.infer(std::span(observations).subspan(first, count),
                                                    std::span(noise).subspan(first * values, count * values));
    for (size_t i = 0; i < count; ++i) {
      outcomes[first + i].chunk = std::move(chunks[i]);
      outcomes[first + i].model_us = outcomes[first + i].chunk.model_us;
    }
  };
  inferences_ += batch.size();
  try {
    run(0, batch.size());
    return outcomes;
  } catch (const std::exception& error) {
    if (batch.size() == 1) {
      log_warning(log_, "a request failed: {}", error.what());
      outcomes[0] = outcome_of(error);
      return outcomes;
    }
  }
  // One of them is at fault: each gets the result of its own call.
  for (size_t i = 0; i < batch.size(); ++i) {
    try {
      run(i, 1);
    } catch (const std::exception& error) {
      log_warning(log_, "a request failed: {}", error.what());
      outcomes[i] = outcome_of(error);
    }
  }
  return outcomes;
}

void PolicyModel::report_cut(int tokens) {
  const std::lock_guard lock(cut_mutex_);
  ++cut_;
  const double now_s = now_us() * 1e-6;
  if (now_s - last_cut_s_ < kCutLogInterval_s) return;
  last_cut_s_ = now_s;
  log_warning(log_, "Token length ({}) exceeds max length ({}), truncating. {} prompts were cut so far.", tokens,
              policy_.engine().config().max_token_len, cut_);
}

void PolicyModel::idle() {
  const double now_s = now_us() * 1e-6;
  Backend& backend = policy_.engine().backend();
  if (now_s - last_sensors_s_ < kSensorInterval_s || backend.uses_host_memory()) return;
  last_sensors_s_ = now_s;
  const DeviceInfo info = backend.info();
  metrics_.set_device_memory(info.memory_bytes - std::min(info.free_bytes, info.memory_bytes));
  const std::optional<double> energy = backend.sensors().energy_j;
  if (energy && last_energy_j_ && inferences_ > inferences_at_energy_) {
    metrics_.set_energy((*energy - *last_energy_j_) / static_cast<double>(inferences_ - inferences_at_energy_));
  }
  last_energy_j_ = energy;
  inferences_at_energy_ = inferences_;
}

}  // namespace tendon
