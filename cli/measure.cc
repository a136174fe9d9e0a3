#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "ops/cost.h"
#include "session.h"

namespace tendon::cli {
namespace {

constexpr int kDeviceWarmUps = 20;
constexpr int kStageRuns = 20;
constexpr int kOpRuns = 5;
// The energy counter of common cards moves every 20 to 100 ms: shorter measurements say nothing.
constexpr double kLeastEnergySeconds = 1;
constexpr double kSensorPeriodSeconds = 0.1;
constexpr size_t kFlushBytes = size_t{256} << 20;  // more than any cache holds

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

class Measurement {
 public:
  Measurement(Engine& engine, const Workload& workload) : engine_(engine), workload_(workload) {}

  // Timing each operation costs a device its one-launch graph, so there calls are timed whole, and stages and
  // operations afterwards.
  Measured run(const MeasureOptions& options) {
    const bool apart = !engine_.backend().uses_host_memory();
    const double begin = now_s();
    plan_ = &engine_.prepare(workload_.samples());
    measured_.plan_s = now_s() - begin;
    sample_idle();
    measured_.first_call_ms = timed_call(nullptr);
    if (options.cold) flush_ = DeviceBlock(engine_.backend(), kFlushBytes);
    most_runs_ = options.iters > 0 ? options.iters : kDeviceWarmUps;
    for (int i = 0; apart && i < at_most(kDeviceWarmUps); ++i) timed_call(nullptr);

    std::vector<double> wall, device;
    OpTimes times;
    plan_->time_device(true);
    const double start = now_s();
    for (int64_t i = 0; options.iters > 0 ? i < options.iters : (i < 3 || now_s() - start < options.seconds); ++i) {
      if (options.cold) engine_.backend().fill_zero(flush_.data(), flush_.bytes());
      wall.push_back(timed_call(apart ? nullptr : &times));
      if (const auto us = plan_->device_us(); us && apart) device.push_back(*us * 1e-3);
      if (!apart) add_op_times(times);
    }
    plan_->time_device(false);
    measured_.wall = Times(std::move(wall));
    if (!device.empty()) measured_.device.emplace(std::move(device));
    if (apart) {
      time_stages();
      for (int i = 0; i < at_most(kOpRuns); ++i) {
        timed_call(&times);
        add_op_times(times);
      }
      measure_energy(options.power_seconds);
    } else {
      measured_.energy.missing = engine_.backend().sensors().missing;
      for (const std::string& name : stage_order_) measured_.stage_ms.emplace_back(name, median(stages_[name]));
    }
    for (auto& [name, sum] : measured_.ops) {
      sum.us /= static_cast<double>(op_timed_calls_);
      sum.flops /= static_cast<double>(op_timed_calls_);
      sum.count /= op_timed_calls_;
    }
    return std::move(measured_);
  }

 private:
  // Few timed calls, few of all others.
  int at_most(int runs) const { return static_cast<int>(std::min<int64_t>(runs, most_runs_)); }

  double timed_call(OpTimes* times) {
    const double start = now_s();
    call(engine_, workload_, actions_, times);
    return (now_s() - start) * 1e3;
  }

  void add_op_times(const OpTimes& times) {
    if (engine_.backend().uses_host_memory()) {
      for (const StageTime& stage : stage_times(*plan_, times)) {
        if (!stages_.contains(stage.name)) stage_order_.push_back(stage.name);
        stages_[stage.name].push_back(stage.us * 1e-3);
      }
    }
    const std::vector<Op>& ops = plan_->ops();
    for (size_t at = 0; at < ops.size(); ++at) {
      OpClass& sum = measured_.ops[std::string(op_name(ops[at]))];
      sum.us += times.duration_us[at];
      sum.flops += cost(ops[at]).flops;
      ++sum.count;
    }
    ++op_timed_calls_;
  }

  void time_stages() {
    const std::vector<StageRange> ranges = stage_ranges(*plan_);
    std::vector<size_t> ends;
    for (const StageRange& range : ranges) ends.push_back(range.end);
    std::vector<double> us(ranges.size());
    std::vector<std::vector<double>> ms(ranges.size());
    for (int run = -2; run < at_most(kStageRuns); ++run) {  // the first two warm up
      const Status status = plan_->run_pieces(ends, us);
      if (!status.is_ok()) throw Error(ErrorKind::kDevice, status.message());
      for (size_t i = 0; run >= 0 && i < us.size(); ++i) ms[i].push_back(us[i] * 1e-3);
    }
    for (size_t i = 0; i < ranges.size(); ++i) measured_.stage_ms.emplace_back(ranges[i].name, median(ms[i]));
  }

  // After the plan was made and before any call: the card has come to rest.
  void sample_idle() {
    if (!engine_.backend().sensors().power_w) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    measured_.energy.idle_w = engine_.backend().sensors().power_w;
  }

  void measure_energy(double seconds) {
    Energy& energy = measured_.energy;
    if (seconds < kLeastEnergySeconds) {
      energy.missing = "measured only with --power-seconds 1 or more";
      return;
    }
    const Backend& backend = engine_.backend();
    const DeviceSensors before = backend.sensors();
    energy.missing = before.missing;
    if (!before.energy_j && !before.core_mhz) return;
    std::vector<double> core, memory;
    const double start = now_s();
    double sampled = start;
    while (now_s() - start < seconds) {
      timed_call(nullptr);
      ++energy.calls;
      if (now_s() - sampled < kSensorPeriodSeconds) continue;
      sampled = now_s();
      const DeviceSensors now = backend.sensors();
      if (now.core_mhz) core.push_back(*now.core_mhz);
      if (now.memory_mhz) memory.push_back(*now.memory_mhz);
      if (now.slowed_by && (!energy.slowed_by || energy.slowed_by->empty())) energy.slowed_by = now.slowed_by;
    }
    const DeviceSensors after = backend.sensors();
    energy.seconds = now_s() - start;
    if (before.energy_j && after.energy_j) {
      energy.j_per_call = (*after.energy_j - *before.energy_j) / static_cast<double>(energy.calls);
      energy.mean_w = (*after.energy_j - *before.energy_j) / energy.seconds;
    }
    if (!core.empty()) energy.core_mhz = median(core);
    if (!memory.empty()) energy.memory_mhz = median(memory);
  }

  Engine& engine_;
  const Workload& workload_;
  Plan* plan_ = nullptr;
  DeviceBlock flush_;
  std::vector<float> actions_;
  std::map<std::string, std::vector<double>> stages_;
  std::vector<std::string> stage_order_;
  int64_t op_timed_calls_ = 0, most_runs_ = 0;
  Measured measured_;
};

}  // namespace

Times::Times(std::vector<double> ms) : ms_(std::move(ms)) { std::ranges::sort(ms_); }

double Times::percentile(double p) const {
  const auto rank = static_cast<size_t>(std::ceil(p / 100 * static_cast<double>(ms_.size())));
  return ms_[std::clamp<size_t>(rank, 1, ms_.size()) - 1];
}

std::pair<double, double> Times::median_interval() const {
  // The number of calls below the median is binomial: n/2 ± 1.96 · sqrt(n)/2.
  const double n = static_cast<double>(ms_.size());
  const double half = 0.98 * std::sqrt(n);
  const auto at = [&](double rank) { return ms_[static_cast<size_t>(std::clamp(rank, 0.0, n - 1))]; };
  return {at(std::floor(n / 2 - half)), at(std::ceil(n / 2 + half) - 1)};
}

size_t Times::outliers() const {
  const double p50 = percentile(50);
  std::vector<double> deviations;
  for (const double one : ms_) deviations.push_back(std::fabs(one - p50));
  const double limit = p50 + std::max(0.01 * p50, 10 * median(std::move(deviations)));
  return static_cast<size_t>(ms_.end() - std::ranges::upper_bound(ms_, limit));
}

std::optional<double> Energy::j_per_call_above_idle() const {
  if (!j_per_call || !idle_w || calls == 0) return {};
  return *j_per_call - *idle_w * seconds / static_cast<double>(calls);
}

nlohmann::ordered_json percentiles(const Times& times) {
  return {{"p50", times.percentile(50)}, {"p90", times.percentile(90)},
          {"p99", times.percentile(99)}, {"max", times.max()},
          {"min", times.min()},          {"median_95", {times.median_interval().first, times.median_interval().second}},
          {"outliers", times.outliers()}};
}

void require(const Status& status) {
  if (status.is_ok()) return;
  throw Error(status.code() == StatusCode::kDevice ? ErrorKind::kDevice : ErrorKind::kBadInput, status.message());
}

void call(Engine& engine, const Workload& workload, std::vector<float>& actions, OpTimes* times) {
  actions.resize(workload.samples().size() * static_cast<size_t>(engine.config().horizon * engine.config().action_dim));
  require(engine.infer(workload.samples(), actions, times));
}

Measured measure(Engine& engine, const Workload& workload, const MeasureOptions& options) {
  return Measurement(engine, workload).run(options);
}

int64_t first_different_call(Engine& engine, const Workload& workload, int64_t repeats) {
  std::vector<float> first, again;
  call(engine, workload, first);
  for (int64_t i = 1; i < repeats; ++i) {
    call(engine, workload, again);
    if (std::memcmp(first.data(), again.data(), first.size() * sizeof(float)) != 0) return i;
  }
  return -1;
}

}  // namespace tendon::cli
