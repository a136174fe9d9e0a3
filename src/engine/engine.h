// Runs π0 or π0.5: samples in, action chunks out.
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/log.h"
#include "engine/frame_pool.h"
#include "engine/sample.h"
#include "engine/weight_store.h"
#include "model/forward.h"
#include "plan/plan.h"

namespace tendon {

// Calls of so many samples with so many active cameras each.
struct PreparedBatch {
  int64_t batch = 1, views = 3;
  std::optional<int64_t> prompt_tokens = {};  // of this prompt length alone
};

// "f32", "bf16", "fp8" or "int8": the word for EngineOptions::precision; nothing for another word.
std::string_view precision_name(DType precision);
std::optional<DType> parse_precision(std::string_view name);

struct EngineOptions {
  // Of the operands of the large products: kF32, kBf16, kE4m3 ("fp8") or kI8 ("int8"); with the last two, weights and
  // rows of `coded` products are codes with scales, and all else is as in bf16.
  DType precision = DType::kBf16;
  CodedProducts coded;
  // With codes: static scales of operands behind attention and GELU; null: rows are scaled as they come.
  std::shared_ptr<const OperandMaxima> operand_maxima;
  int64_t steps = 10;  // N, Euler steps
  TimeRule time_rule = TimeRule::kOpenpi;
  RopeFrequencies rope = RopeFrequencies::kExact;
  Folds folds;
  std::optional<Schedule> schedule;       // overrides steps and time_rule
  std::optional<Chunking> chunking = {};  // real-time chunking for the samples that bring a previous chunk
  bool taps = false;                      // keep intermediate values readable (model/forward.h)
  bool operand_taps = false;              // and what static scales are found on
  PlanOptions plan;

  // Prompt lengths that plans are made for. A call runs in the shortest that holds its longest prompt, padded with rows
  // that are computed and read by nobody; a prompt longer than all of them gets a plan of its own length. Empty: every
  // length has its own plan.
  std::vector<int64_t> prompt_lengths;
  // Plans made at start (u8 pictures, all samples with as many views), with chunking a second one of each for samples
  // with a previous chunk; never dropped. Those that name no prompt length are made for every one of prompt_lengths.
  std::vector<PreparedBatch> prepared;
  // Of the pool for pictures of other sizes than the model's, which the plans of u8 pictures then scale; 0: no pool.
  size_t frame_bytes = 0;
  // Refuse a call that needs another plan (kBadInput) instead of making one while the caller waits.
  bool prepared_only = false;
};

// Prompt lengths for serving: 32, 48, 64, 96, 128, then every 64, and the budget itself. Padding costs at most 31 rows
// up to 128 tokens, 63 beyond: of the 788 rows of three 256-token cameras and 20 prompt tokens, 1.5 % are 12 rows of
// padding, less than the tail of a 128-row product tile.
std::vector<int64_t> serving_prompt_lengths(int64_t max_token_len);

// What making an engine took.
struct StartTimes {
  double tables_s = 0;   // time tables and folds, on the host
  double weights_s = 0;  // weights converted and brought to the device
  double plans_s = 0;    // prepared plans made and captured
};

// Device time of one call by the first word of each operation's scope, in order of appearance.
struct StageTime {
  std::string name;  // "vision", "prefix", "denoise"
  double us = 0;
};

// When the host began each part of a call, for traces; the last mark is the end.
struct HostPhases {
  struct Mark {
    const char* phase;
    std::chrono::steady_clock::time_point at;
  };
  std::vector<Mark> marks;
};

class FrameStream;

class Engine {
 public:
  // `host` must stay valid as long as the engine lives. Throws Error as loading and planning do.
  Engine(Backend& backend, const ModelConfig& config, const Weights& host, const EngineOptions& options,
         const LogSink& log = {});
  ~Engine();

  // actions: (samples, H, action_dim) f32, normalised units. Bad input (wrong length, token outside the vocabulary, a
  // number that is not finite, no camera) gives Status kBadInput naming the sample, key, value and what is expected; a
  // result that is not finite gives kNonFinite and leaves `actions` unspecified. A call that no plan fits makes one,
  // with a line in the log when others were prepared; all other calls allocate nothing. Not to be called from two
  // threads at once, nor while frames of a FrameStream are under way (kBadInput).
  Status infer(std::span<const Sample> samples, std::span<float> actions, OpTimes* times = nullptr) noexcept;

  // From now on every call leaves its marks there; null: no longer.
  void mark_phases(HostPhases* phases) { phases_ = phases; }

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
  std::vector<Bucket> prepared_buckets() const;
  // Where pictures of any size are put for CameraView::frame; null without EngineOptions::frame_bytes. A device writes
  // nothing there, so threads may fill it while calls run.
  FramePool* frames() const { return frames_.get(); }
  Backend& backend() const { return backend_; }

  // Checks one sample; ok, or the Status that infer would return.
  Status check(const Sample& sample, size_t index) const noexcept;

 private:
  friend class FrameStream;
  struct Slot;  // a plan with its host staging

  Status check_previous(const PreviousChunk& previous, size_t index) const noexcept;
  Status check_all(std::span<const Sample> samples) const noexcept;
  Status check_room(size_t samples, std::span<const float> actions) const noexcept;

  void prepare_all();
  Slot* find_slot(const Bucket& bucket);
  Slot& slot_for(const Bucket& bucket);
  Slot& make_slot(const Bucket& bucket, bool kept);
  Slot plan_for(const Bucket& bucket, const PlanOptions& options);
  Bucket bucket_of(std::span<const Sample> samples) const;
  int64_t prompt_rows(int64_t tokens) const;
  void* shared_workspace(size_t bytes);

  Backend& backend_;
  ModelConfig config_;
  EngineOptions options_;
  Schedule schedule_;
  std::unique_ptr<WeightStore> store_;
  std::unique_ptr<FramePool> frames_;
  StartTimes start_times_;
  int64_t rope_positions_ = 0;
  LogSink log_;
  HostPhases* phases_ = nullptr;
  std::vector<DeviceBlock> workspaces_;     // of all plans together, streams apart
  std::list<Slot> slots_;                   // most recently used first
  const FrameStream* streaming_ = nullptr;  // whose frames are under way
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
