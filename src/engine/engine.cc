#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>

#include "base/check.h"
#include "engine/slot.h"

namespace tendon {
namespace {

// Calls can ask for any mix of cameras and prompt lengths; this many plans are kept besides the prepared ones.
constexpr int64_t kMaxPlans = 4;
// RoPE rows: the longest prefix (16 cameras of 256 tokens and the longest prompt) and suffix anyone asked for.
constexpr int64_t kMaxCameras = 16;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t first_non_finite(std::span<const float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) return static_cast<int64_t>(i);
  }
  return -1;
}

bool has_frames(std::span<const Sample> samples) {
  return std::ranges::any_of(samples, [](const Sample& sample) {
    return std::ranges::any_of(sample.cameras, [](const CameraView& c) { return c.active && c.frame != nullptr; });
  });
}

}  // namespace

Status check_actions(std::span<const float> actions) noexcept {
  const int64_t at = first_non_finite(actions);
  if (at < 0) return Status::ok();
  return Status::error(StatusCode::kNonFinite,
                       "non-finite action at index %ld: the weights or inputs hold values that overflow",
                       static_cast<long>(at));
}

std::string_view precision_name(DType precision) {
  return precision == DType::kE4m3 ? "fp8" : precision == DType::kI8 ? "int8" : dtype_name(precision);
}

std::optional<DType> parse_precision(std::string_view name) {
  for (const DType precision : {DType::kF32, DType::kBf16, DType::kE4m3, DType::kI8}) {
    if (name == precision_name(precision)) return precision;
  }
  return std::nullopt;
}

Engine::~Engine() = default;

Engine::Engine(Backend& backend, const ModelConfig& config, const Weights& host, const EngineOptions& options,
               const LogSink& log)
    : backend_(backend), config_(config), options_(options), log_(log) {
  TENDON_CHECK(parse_precision(precision_name(options.precision)), "precision {}", dtype_name(options.precision));
  if (config_.horizon < 1 || config_.max_token_len < 1)
    throw_bad_use("The action horizon and the prompt budget must be set before an engine is made.");
  schedule_ = options.schedule ? *options.schedule : make_schedule(options.steps, options.time_rule);
  rope_positions_ = kMaxCameras * config_.vision.tokens() + config_.max_token_len + config_.horizon + 1;
  const Clock::time_point begin = Clock::now();
  Schedule tabulated = schedule_;
  if (options_.chunking && options_.chunking->mode == ChunkingMode::kTrained) tabulated.times.push_back(0.0F);
  const HostTables tables = build_tables(host, config_, options_.folds, tabulated, rope_positions_, options_.rope);
  start_times_.tables_s = seconds_since(begin);
  const Clock::time_point built = Clock::now();
  if (options_.operand_maxima && options_.operand_maxima->weights != weights_mark(host))
    log_warning(log, "the static scales were found on other weights; `tendon check` tells how well they fit these");
  store_ = std::make_unique<WeightStore>(backend, host, config_, options_.folds, options_.precision, options_.coded,
                                         tables, options_.operand_maxima.get());
  start_times_.weights_s = seconds_since(built);
  const auto gb = [](size_t bytes) { return static_cast<double>(bytes) * 1e-9; };
  log_info(log,
           "weights: {:.2f} GB used in place, {:.2f} GB copied or tabulated, {:.2f} GB made on the device, in {:.2f} s",
           gb(store_->in_place_bytes()), gb(store_->copied_bytes() - store_->made_bytes()), gb(store_->made_bytes()),
           start_times_.weights_s);
  std::ranges::sort(options_.prompt_lengths);
  if (options_.frame_bytes > 0) frames_ = std::make_unique<FramePool>(backend, options_.frame_bytes);
  prepare_all();
}

std::vector<int64_t> serving_prompt_lengths(int64_t max_token_len) {
  std::vector<int64_t> lengths;
  for (int64_t length = 32; length < max_token_len; length += length < 64 ? 16 : length < 128 ? 32 : 64) {
    lengths.push_back(length);
  }
  lengths.push_back(max_token_len);
  return lengths;
}

// The largest first, so that all of them fit into its workspace.
void Engine::prepare_all() {
  const Clock::time_point begin = Clock::now();
  std::vector<int64_t> lengths = options_.prompt_lengths;
  if (lengths.empty() || !options_.folds.pack_valid_tokens) lengths = {config_.max_token_len};
  std::vector<Bucket> buckets;
  for (const PreparedBatch& prepared : options_.prepared) {
    if (prepared.batch < 1 || prepared.views < 1 || prepared.views > kMaxCameras)
      throw_bad_use(
          "A plan for {} samples with {} views was asked for; there must be at least one of each, and {} views "
          "at most.",
          prepared.batch, prepared.views, kMaxCameras);
    if (prepared.prompt_tokens.value_or(1) < 1 || prepared.prompt_tokens.value_or(1) > config_.max_token_len)
      throw_bad_use("A plan for prompts of {} tokens was asked for; the prompt budget is {} (--max-tokens).",
                    *prepared.prompt_tokens, config_.max_token_len);
    const std::vector<int64_t> own =
        prepared.prompt_tokens ? std::vector{prompt_rows(*prepared.prompt_tokens)} : lengths;
    for (const int64_t length : own) {
      Bucket bucket{.batch = prepared.batch,
                    .images = prepared.batch * prepared.views,
                    .prefix_rows = prepared.views * config_.vision.tokens() + std::min(length, config_.max_token_len),
                    .image_dtype = DType::kU8};
      buckets.push_back(bucket);
      bucket.chunked = true;
      if (options_.chunking) buckets.push_back(bucket);
    }
  }
  std::ranges::sort(buckets, std::greater());
  for (const Bucket& bucket : buckets) {
    if (find_slot(bucket) == nullptr) make_slot(bucket, true);
  }
  start_times_.plans_s = seconds_since(begin);
  if (!buckets.empty()) log_info(log_, "{} plans made in {:.2f} s", slots_.size(), start_times_.plans_s);
}

std::vector<Bucket> Engine::prepared_buckets() const {
  std::vector<Bucket> buckets;
  for (const Slot& slot : slots_) {
    if (slot.kept) buckets.push_back(slot.bucket);
  }
  std::ranges::sort(buckets);
  return buckets;
}

int64_t Engine::prompt_rows(int64_t tokens) const {
  const auto length = std::ranges::lower_bound(options_.prompt_lengths, tokens);
  return length == options_.prompt_lengths.end() ? tokens : std::min(*length, config_.max_token_len);
}

void* Engine::shared_workspace(size_t bytes) {
  for (const DeviceBlock& block : workspaces_) {
    if (block.bytes() >= bytes) return block.data();
  }
  return workspaces_.emplace_back(backend_, bytes).data();
}

Bucket Engine::bucket_of(std::span<const Sample> samples) const {
  Bucket bucket{.batch = std::ssize(samples), .images = 0, .prefix_rows = 1, .image_dtype = DType::kU8};
  const bool pack = options_.folds.pack_valid_tokens;
  for (const Sample& sample : samples) {
    const auto active = std::ranges::count_if(sample.cameras, [](const CameraView& c) { return c.active; });
    const int64_t used = pack ? active : std::ssize(sample.cameras);
    const int64_t tokens = pack ? prompt_rows(std::ssize(sample.tokens)) : config_.max_token_len;
    bucket.images += used;
    bucket.chunked = bucket.chunked || !sample.previous.actions.empty();
    bucket.prefix_rows = std::max(bucket.prefix_rows, used * config_.vision.tokens() + tokens);
    for (const CameraView& camera : sample.cameras) {
      if (camera.active && camera.dtype == DType::kF32) bucket.image_dtype = DType::kF32;
    }
  }
  return bucket;
}

Engine::Slot* Engine::find_slot(const Bucket& bucket) {
  const auto found = std::ranges::find(slots_, bucket, &Slot::bucket);
  if (found == slots_.end()) return nullptr;
  slots_.splice(slots_.begin(), slots_, found);
  return &slots_.front();
}

Engine::Slot& Engine::slot_for(const Bucket& bucket) {
  if (Slot* const found = find_slot(bucket)) return *found;
  const auto is_dropped = [](const Slot& slot) { return !slot.kept; };
  if (std::ranges::count_if(slots_, is_dropped) >= kMaxPlans) {
    slots_.erase(std::next(std::ranges::find_if(slots_.rbegin(), slots_.rend(), is_dropped)).base());
  }
  if (!options_.prepared.empty()) {
    log_info(log_, "making a plan that was not prepared: {} samples, {} pictures, {} prefix rows", bucket.batch,
             bucket.images, bucket.prefix_rows);
  }
  return make_slot(bucket, false);
}

Engine::Slot Engine::plan_for(const Bucket& bucket, const PlanOptions& options) {
  TENDON_CHECK(streaming_ == nullptr, "a plan cannot be made while frames of a stream are under way");
  const ForwardSpec spec{.config = config_,
                         .weights = store_->weights(),
                         .tables = store_->tables(),
                         .folds = options_.folds,
                         .schedule = schedule_,
                         .activation = options_.precision == DType::kF32 ? DType::kF32 : DType::kBf16,
                         .bucket = bucket,
                         .taps = options_.taps,
                         .operand_taps = options_.operand_taps,
                         .chunking = bucket.chunked ? options_.chunking : std::nullopt,
                         .frame_pool = frames_ ? frames_->memory() : Tensor{}};
  Recorder recorder;
  record_policy(recorder, spec);
  auto plan = std::make_unique<Plan>(backend_, recorder, options);
  const HostInputs inputs(spec, *plan);
  const Tensor actions = plan->host("actions");
  return {.bucket = bucket,
          .plan = std::move(plan),
          .inputs = inputs,
          .actions = {actions.as<const float>(), static_cast<size_t>(actions.elements())}};
}

Engine::Slot& Engine::make_slot(const Bucket& bucket, bool kept) {
  PlanOptions options = options_.plan;
  options.workspace = [this](size_t bytes) { return shared_workspace(bytes); };
  slots_.push_front(plan_for(bucket, options));
  slots_.front().kept = kept;
  return slots_.front();
}

Plan& Engine::prepare(std::span<const Sample> samples) { return *slot_for(bucket_of(samples)).plan; }

const Plan& Engine::plan() const {
  TENDON_CHECK(!slots_.empty(), "no plan has been made");
  return *slots_.front().plan;
}

const Bucket& Engine::bucket() const {
  TENDON_CHECK(!slots_.empty(), "no plan has been made");
  return slots_.front().bucket;
}

Status Engine::check(const Sample& sample, size_t index) const noexcept {
  const auto bad = [&](const char* key, long got, long wanted) {
    return Status::error(StatusCode::kBadInput, "sample %zu: %s has %ld values, expected %ld", index, key, got, wanted);
  };
  if (std::ssize(sample.cameras) > kMaxCameras) return bad("cameras", std::ssize(sample.cameras), kMaxCameras);
  if (std::ranges::none_of(sample.cameras, [](const CameraView& c) { return c.active; })) {
    return Status::error(StatusCode::kBadInput, "sample %zu: no camera is active; at least one picture is needed",
                         index);
  }
  for (size_t camera = 0; camera < sample.cameras.size(); ++camera) {
    const CameraView& view = sample.cameras[camera];
    if (!view.active) continue;
    if (view.frame != nullptr) {
      if (*view.frame && view.frame->pool() == frames_.get()) continue;
      return Status::error(StatusCode::kBadInput,
                           "sample %zu: camera %zu has a frame of another pool than the engine's", index, camera);
    }
    if (view.pixels == nullptr) {
      return Status::error(StatusCode::kBadInput, "sample %zu: camera %zu is active but has no pixels", index, camera);
    }
    if (view.dtype == DType::kU8) continue;
    if (view.planar) {
      return Status::error(StatusCode::kBadInput,
                           "sample %zu: camera %zu has planes of floats; planes must be u8, floats interleaved", index,
                           camera);
    }
    const std::span<const float> pixels(static_cast<const float*>(view.pixels),
                                        static_cast<size_t>(config_.vision.pixels()));
    if (const int64_t at = first_non_finite(pixels); at >= 0) {
      return Status::error(StatusCode::kBadInput,
                           "sample %zu: camera %zu holds a value that is not finite, first at index %ld", index, camera,
                           static_cast<long>(at));
    }
  }
  if (sample.tokens.empty() || std::ssize(sample.tokens) > config_.max_token_len) {
    return Status::error(StatusCode::kBadInput, "sample %zu: the prompt has %zu tokens, expected 1 to %ld", index,
                         sample.tokens.size(), static_cast<long>(config_.max_token_len));
  }
  for (size_t i = 0; i < sample.tokens.size(); ++i) {
    if (sample.tokens[i] < 0 || sample.tokens[i] >= config_.vocab) {
      return Status::error(StatusCode::kBadInput, "sample %zu: prompt token %zu is %d, outside the vocabulary of %ld",
                           index, i, sample.tokens[i], static_cast<long>(config_.vocab));
    }
  }
  const int64_t noise_values = config_.horizon * config_.action_dim;
  if (std::ssize(sample.noise) != noise_values) return bad("noise", std::ssize(sample.noise), noise_values);
  if (const int64_t at = first_non_finite(sample.noise); at >= 0) {
    return Status::error(StatusCode::kBadInput,
                         "sample %zu: noise holds a value that is not finite, first at index %ld", index,
                         static_cast<long>(at));
  }
  if (Status status = check_previous(sample.previous, index); !status.is_ok()) return status;
  if (config_.pi05()) return Status::ok();
  if (std::ssize(sample.state) != config_.action_dim) return bad("state", std::ssize(sample.state), config_.action_dim);
  if (const int64_t at = first_non_finite(sample.state); at >= 0) {
    return Status::error(StatusCode::kBadInput,
                         "sample %zu: state holds a value that is not finite, first at index %ld", index,
                         static_cast<long>(at));
  }
  return Status::ok();
}

Status Engine::check_previous(const PreviousChunk& previous, size_t index) const noexcept {
  if (previous.actions.empty()) return Status::ok();
  if (!options_.chunking) {
    return Status::error(StatusCode::kBadInput,
                         "sample %zu brings a previous chunk, but this engine was made without chunking", index);
  }
  const int64_t values = config_.horizon * config_.action_dim;
  const bool is_guided = options_.chunking->mode == ChunkingMode::kGuided;
  if (std::ssize(previous.actions) != values || (is_guided && std::ssize(previous.guidance) != values)) {
    return Status::error(StatusCode::kBadInput,
                         "sample %zu: the previous chunk has %zu values and %zu weights, expected %ld each", index,
                         previous.actions.size(), previous.guidance.size(), static_cast<long>(values));
  }
  const int64_t bad_action = first_non_finite(previous.actions);
  const int64_t bad_weight = is_guided ? first_non_finite(previous.guidance) : -1;
  if (bad_action >= 0 || bad_weight >= 0) {
    return Status::error(
        StatusCode::kBadInput, "sample %zu: the previous chunk holds a %s that is not finite, first at index %ld",
        index, bad_action >= 0 ? "value" : "weight", static_cast<long>(bad_action >= 0 ? bad_action : bad_weight));
  }
  if (previous.frozen_rows < 0 || previous.frozen_rows > config_.horizon) {
    return Status::error(StatusCode::kBadInput, "sample %zu: %ld rows are given, expected 0 to %ld", index,
                         static_cast<long>(previous.frozen_rows), static_cast<long>(config_.horizon));
  }
  return Status::ok();
}

Status Engine::check_room(size_t samples, std::span<const float> actions) const noexcept {
  const auto values = samples * static_cast<size_t>(config_.horizon * config_.action_dim);
  if (samples > 0 && actions.size() == values) return Status::ok();
  return Status::error(StatusCode::kBadInput, "%zu samples give %zu action values, room for %zu was given", samples,
                       values, actions.size());
}

Status Engine::check_all(std::span<const Sample> samples) const noexcept {
  for (size_t i = 0; i < samples.size(); ++i) {
    if (Status status = check(samples[i], i); !status.is_ok()) return status;
  }
  if (has_frames(samples) && bucket_of(samples).image_dtype != DType::kU8) {
    return Status::error(StatusCode::kBadInput, "pictures of f32 and frames of the pool cannot share a call");
  }
  return Status::ok();
}

Status Engine::infer(std::span<const Sample> samples, std::span<float> actions, OpTimes* times) noexcept {
  try {
    const auto mark = [this](const char* phase) {
      if (phases_ != nullptr) phases_->marks.push_back({phase, Clock::now()});
    };
    if (phases_ != nullptr) phases_->marks.clear();
    mark("check inputs");
    if (Status status = check_room(samples.size(), actions); !status.is_ok()) return status;
    if (Status status = check_all(samples); !status.is_ok()) return status;
    if (streaming_ != nullptr) {
      return Status::error(StatusCode::kBadInput,
                           "frames of a stream are under way; wait for their actions before an ordinary call");
    }
    const Bucket bucket = bucket_of(samples);
    if (options_.prepared_only && find_slot(bucket) == nullptr) {
      return Status::error(StatusCode::kBadInput,
                           "%ld samples with %ld pictures and at most %ld prefix rows were not prepared for, and this "
                           "engine makes no plan while a caller waits",
                           static_cast<long>(bucket.batch), static_cast<long>(bucket.images),
                           static_cast<long>(bucket.prefix_rows));
    }
    mark("find plan");
    Slot& slot = slot_for(bucket);
    mark("fill inputs");
    slot.inputs.fill(samples);
    mark("run");
    if (Status status = slot.plan->run(times); !status.is_ok()) return status;
    mark("read actions");
    std::ranges::copy(slot.actions, actions.begin());
    mark("check actions");
    if (Status status = check_actions(actions); !status.is_ok()) return status;
    mark("end");
    return Status::ok();
  } catch (const Error& error) {
    const StatusCode code = error.kind() == ErrorKind::kDevice ? StatusCode::kDevice : StatusCode::kInternal;
    return Status::error(code, "%s", error.what());
  } catch (const std::exception& error) {
    return Status::error(StatusCode::kInternal, "%s", error.what());
  }
}

std::vector<StageRange> stage_ranges(const Plan& plan) {
  std::vector<StageRange> ranges;
  for (size_t i = 0; i < plan.ops().size(); ++i) {
    const std::string& scope = plan.ops()[i].scope;
    const std::string name = scope.substr(0, scope.find('.'));
    if (ranges.empty() || ranges.back().name != name) ranges.push_back({name, i, i});
    ranges.back().end = i + 1;
  }
  return ranges;
}

std::vector<StageTime> stage_times(const Plan& plan, const OpTimes& times) {
  std::vector<StageTime> stages;
  for (size_t i = 0; i < plan.ops().size() && i < times.duration_us.size(); ++i) {
    const std::string& scope = plan.ops()[i].scope;
    const std::string name = scope.substr(0, scope.find('.'));
    const auto found = std::ranges::find(stages, name, &StageTime::name);
    if (found == stages.end()) {
      stages.push_back({name, times.duration_us[i]});
    } else {
      found->us += times.duration_us[i];
    }
  }
  return stages;
}

}  // namespace tendon
