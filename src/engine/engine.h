// Runs π0 or π0.5: samples in, action chunks out.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/log.h"
#include "engine/sample.h"
#include "engine/weight_store.h"
#include "model/forward.h"
#include "plan/plan.h"

namespace tendon {

struct EngineOptions {
  DType precision = DType::kBf16;  // kBf16 or kF32
  int64_t steps = 10;              // N, Euler steps
  TimeRule time_rule = TimeRule::kOpenpi;
  RopeFrequencies rope = RopeFrequencies::kExact;
  Folds folds;
  std::optional<Schedule> schedule;  // overrides steps and time_rule
  bool taps = false;                 // keep intermediate values readable (model/forward.h)
  PlanOptions plan;
};

// What making an engine took.
struct StartTimes {
  double tables_s = 0;   // time tables and folds, on the host
  double weights_s = 0;  // weights converted and brought to the device
};

// Device time of one call by the first word of each operation's scope, in order of appearance.
struct StageTime {
  std::string name;  // "vision", "prefix", "denoise"
  double us = 0;
};

class Engine {
 public:
  // `host` must stay valid as long as the engine lives. Throws Error as loading and planning do.
  Engine(Backend& backend, const ModelConfig& config, const Weights& host, const EngineOptions& options,
         const LogSink& log = {});
  ~Engine();

  // actions: (samples, H, action_dim) f32, normalised units. Bad input (wrong length, token outside the vocabulary, a
  // number that is not finite, no camera) gives Status kBadInput naming the sample, key, value and what is expected; a
  // result that is not finite gives kNonFinite and leaves `actions` unspecified. The first call of a new bucket makes
  // its plan. Not to be called from two threads at once.
  Status infer(std::span<const Sample> samples, std::span<float> actions, OpTimes* times = nullptr) noexcept;

  // Makes the plan of the bucket that these samples need; throws what planning throws.
  Plan& prepare(std::span<const Sample> samples);

  // The plan of the last call or prepare.
  const Plan& plan() const;
  const Bucket& bucket() const;

  const ModelConfig& config() const { return config_; }
  const EngineOptions& options() const { return options_; }
  const Schedule& schedule() const { return schedule_; }
  const WeightStore& store() const { return *store_; }
  const StartTimes& start_times() const { return start_times_; }
  Backend& backend() const { return backend_; }

  // Checks one sample; ok, or the Status that infer would return.
  Status check(const Sample& sample, size_t index) const noexcept;

 private:
  struct Slot;  // a plan with its host staging

  Slot& slot_for(const Bucket& bucket);
  Bucket bucket_of(std::span<const Sample> samples) const;

  Backend& backend_;
  ModelConfig config_;
  EngineOptions options_;
  Schedule schedule_;
  std::unique_ptr<WeightStore> store_;
  StartTimes start_times_;
  int64_t rope_positions_ = 0;
  std::list<Slot> slots_;  // most recently used first
};

// Consecutive operations whose scope begins with one word.
struct StageRange {
  std::string name;
  size_t begin = 0, end = 0;  // operations of the plan
};
std::vector<StageRange> stage_ranges(const Plan& plan);

// Sums op times by stage.
std::vector<StageTime> stage_times(const Plan& plan, const OpTimes& times);

}  // namespace tendon
