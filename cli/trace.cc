// tendon trace: one call as a trace that Perfetto opens and tendon report reads.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "base/check.h"
#include "call_trace.h"
#include "commands.h"
#include "measure.h"
#include "session.h"
#include "version.h"
#include "workload.h"

namespace tendon::cli {
namespace {

constexpr int kTracedWarmUps = 3;
constexpr size_t kFirstPieceOps = 8;

using SteadyClock = std::chrono::steady_clock;

struct TraceOptions {
  ModelOptions model;
  WorkloadOptions workload;
  std::string out;
  bool no_kernels = false;
  int64_t untraced = 0;
};

double us_between(SteadyClock::time_point from, SteadyClock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

// Reads the sensors, or what the process shows of itself: where the host computes every few milliseconds until it is
// stopped; of a card once before and once after, as reading would delay the call.
class Sampler {
 public:
  explicit Sampler(const Backend& backend) : backend_(backend) {
    if (backend.uses_host_memory()) {
      thread_ = std::thread([this] { run(); });
    } else {
      read();
    }
  }
  ~Sampler() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
  }
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  void stop() {
    done_ = true;
    if (thread_.joinable()) {
      thread_.join();
    } else {
      read();
    }
  }
  std::vector<CounterSample> since(SteadyClock::time_point start) const {
    std::vector<CounterSample> samples;
    for (const auto& [at, name, value] : samples_)
      samples.push_back({name, std::max(0.0, us_between(start, at)), value});
    return samples;
  }

 private:
  void run() {
    constexpr auto kPeriod = std::chrono::milliseconds(5);
    do {
      read();
      std::this_thread::sleep_for(kPeriod);
    } while (!done_);
  }
  void read() {
    const DeviceSensors now = backend_.sensors();
    const auto at = SteadyClock::now();
    const auto add = [&](const char* name, std::optional<double> value) {
      if (value) samples_.emplace_back(at, name, *value);
    };
    add("power W", now.power_w);
    add("core MHz", now.core_mhz);
    add("memory MHz", now.memory_mhz);
    add("temperature °C", now.temperature_c);
    if (backend_.uses_host_memory()) add("resident MB", static_cast<double>(memory_use().resident) * 1e-6);
  }

  const Backend& backend_;
  std::vector<std::tuple<SteadyClock::time_point, std::string, double>> samples_;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

// A tracer's library works some µs on the host for every kernel of a graph before the first of them runs; a kernel that
// is worth tracing takes longer. So in a short piece first, and then in pieces little longer than all in front of them,
// only the first one's work keeps the device waiting.
std::vector<size_t> piece_ends(size_t ops) {
  std::vector<size_t> ends;
  for (size_t end = kFirstPieceOps; end < ops; end = 2 * end + kFirstPieceOps) ends.push_back(end);
  return ends;
}

class Tracing {
 public:
  Tracing(const TraceOptions& options, Session& session)
      : options_(options),
        session_(session),
        engine_(*session.engine),
        workload_(session.model.config, options.workload),
        on_device_(!session.backend->uses_host_memory()) {}

  void run() {
    if (on_device_) open_tracer();
    engine_.prepare(workload_.samples());
    if (tracer_ != nullptr) (void)stop_tracer();
    measure_untraced();
    if (tracer_ != nullptr) {
      trace_replay();
    } else {
      call_.one_by_one = on_device_;
      traced_call([&](OpTimes& times) { return &times; });
    }
    add_facts();
    const Plan& plan = engine_.plan();
    for (const Op& op : plan.ops()) call_.kernel_names.push_back(session_.backend->kernel_name(op));
    write_call_trace(options_.out, call_, plan, session_.backend->info().limits);
    print();
  }

 private:
  // Starts it, so that it is on while the plan and its graph are made, whichever of that the vendor's library may need.
  void open_tracer() {
    if (options_.no_kernels) {
      reason_ = "--no-kernels was given";
      return;
    }
    TracerOrReason made = session_.backend->make_tracer();
    tracer_ = std::move(made.tracer);
    reason_ = made.reason;
    if (tracer_ == nullptr) return;
    library_ = tracer_->library();
    tracer_->start(true);
  }

  std::vector<DeviceActivity> stop_tracer() {
    size_t dropped = 0;
    std::vector<DeviceActivity> activities = tracer_->stop(dropped);
    dropped_ += dropped;
    return activities;
  }

  double call_once(OpTimes* times) {
    const double start = now_s();
    call(engine_, workload_, actions_, times);
    return (now_s() - start) * 1e3;
  }

  void measure_untraced() {
    constexpr int64_t kOnDevice = 20;
    constexpr int64_t kOnHost = 2;
    const int64_t calls = options_.untraced > 0 ? options_.untraced : on_device_ ? kOnDevice : kOnHost;
    call_once(nullptr);
    std::vector<double> ms, device_ms;
    engine_.prepare(workload_.samples()).time_device(true);
    for (int64_t i = 0; i < calls; ++i) {
      ms.push_back(call_once(nullptr));
      if (const auto us = engine_.plan().device_us()) device_ms.push_back(*us * 1e-3);
    }
    engine_.prepare(workload_.samples()).time_device(false);
    untraced_ms_ = Times(ms).percentile(50);
    if (!device_ms.empty()) untraced_device_ms_ = Times(device_ms).percentile(50);
  }

  // One call with phases and counters; `times_of` says whether operations are timed. Fills call_.phases and, from the
  // operations' times, call_.ops.
  template <class TimesOf>
  void traced_call(const TimesOf& times_of) {
    HostPhases phases;
    OpTimes times;
    engine_.mark_phases(&phases);
    Sampler sampler(*session_.backend);
    traced_ms_ = call_once(times_of(times));
    sampler.stop();
    engine_.mark_phases(nullptr);
    const SteadyClock::time_point start = phases.marks.front().at;
    call_start_ = start;
    for (size_t i = 0; i + 1 < phases.marks.size(); ++i) {
      const HostPhases::Mark& mark = phases.marks[i];
      call_.phases.push_back({mark.phase, us_between(start, mark.at), us_between(mark.at, phases.marks[i + 1].at)});
      if (std::string_view(mark.phase) == "run") run_us_ = us_between(start, mark.at);
    }
    call_.counters = sampler.since(start);
    for (double& one : times.start_us) one += run_us_;
    call_.ops = std::move(times);
  }

  void trace_replay() {
    // Launched one by one, so that every kernel is known by its operation.
    tracer_->start(true);
    OpTimes times;
    times.before_op = [&](size_t op) { tracer_->next_op(static_cast<int64_t>(op)); };
    call_once(&times);
    const std::vector<DeviceActivity> direct = stop_tracer();
    // The graph, with the tracer's clock joined to the host's. The first calls prepare what the tracer needs.
    tracer_->start(false);
    Plan& plan = engine_.prepare(workload_.samples());
    launches_ = plan.launch_in_pieces(piece_ends(plan.ops().size()));
    for (int i = 0; i < kTracedWarmUps; ++i) call_once(nullptr);
    tracer_->start(false);
    const SteadyClock::time_point tracer_start = SteadyClock::now();
    traced_call([](OpTimes&) -> OpTimes* { return nullptr; });
    call_.activities = stop_tracer();
    plan.launch_in_pieces({});
    const double shift = us_between(call_start_, tracer_start);
    for (DeviceActivity& activity : call_.activities) activity.start_us += shift;
    if (assign_ops(direct, call_.activities)) {
      call_.ops = op_times_of(call_.activities, engine_.plan().ops().size());
      return;
    }
    note_ =
        "the graph ran other kernels than the operations one by one: rows of operations show the latter, kernels have "
        "no "
        "operation";
    log_warning(stderr_log(), "{}", note_);
    call_.ops = op_times_of(direct, engine_.plan().ops().size());
    call_.one_by_one = true;
  }

  void add_facts() {
    const DeviceInfo device = session_.backend->info();
    call_.device = fmt::format("{}: {}", session_.backend->name(), device.name);
    const auto fact = [&](const char* key, const std::string& value) { call_.facts.emplace_back(key, value); };
    fact("version", TENDON_VERSION);
    fact("commit", TENDON_COMMIT);
    fact("device", device.name);
    fact("driver", device.driver);
    fact("runtime", device.runtime);
    fact("checkpoint", options_.model.checkpoint);
    fact("precision", options_.model.precision_text());
    fact("workload", fmt::format("batch {}, {} views, {} prompt tokens, horizon {}, {} steps", options_.workload.batch,
                                 options_.workload.views, workload_.prompt_tokens(), engine_.config().horizon,
                                 engine_.schedule().times.size()));
    fact("untraced_ms", fmt::format("{:.3f}", untraced_ms_));
    fact("traced_ms", fmt::format("{:.3f}", traced_ms_));
    if (untraced_device_ms_ && !call_.activities.empty()) {
      fact("untraced_device_ms", fmt::format("{:.3f}", *untraced_device_ms_));
      fact("traced_device_ms", fmt::format("{:.3f}", device_span_us() * 1e-3));
    }
    fact("kernels", kernels_from());
    if (dropped_ > 0) fact("dropped", fmt::format("{} records did not fit into the tracer's buffers", dropped_));
    if (!note_.empty()) fact("note", note_);
  }

  std::string kernels_from() const {
    if (tracer_ != nullptr) {
      return launches_ == 1 ? library_ + ", inside the replayed graph"
                            : fmt::format("{}, inside the graph, replayed in {} pieces", library_, launches_);
    }
    if (!on_device_) return "none: the host computes, its operations are timed one by one";
    return "none: " + reason_ + ". Operations were launched one by one, with events between them";
  }

  double device_span_us() const {
    double first = std::numeric_limits<double>::infinity();
    double last = 0;
    for (const DeviceActivity& activity : call_.activities) {
      if (activity.kind == DeviceActivity::Kind::kApi) continue;
      first = std::min(first, activity.start_us);
      last = std::max(last, activity.start_us + activity.duration_us);
    }
    return last - first;
  }

  void print() const {
    const auto more = [](double traced, double untraced) { return 100 * (traced / untraced - 1); };
    fmt::print("{}: {} operations, {} kernels and copies; call {:.3f} ms, untraced {:.3f} ms ({:+.1f} %)\n",
               options_.out, engine_.plan().ops().size(), call_.activities.size(), traced_ms_, untraced_ms_,
               more(traced_ms_, untraced_ms_));
    if (untraced_device_ms_ && !call_.activities.empty()) {
      const double device_ms = device_span_us() * 1e-3;
      fmt::print("on the device {:.3f} ms from the first copy to the last, untraced {:.3f} ms ({:+.1f} %)\n", device_ms,
                 *untraced_device_ms_, more(device_ms, *untraced_device_ms_));
    }
    fmt::print("kernels: {}\n", kernels_from());
    fmt::print("Open it at https://ui.perfetto.dev, or see: tendon report {}\n", options_.out);
  }

  const TraceOptions& options_;
  Session& session_;
  Engine& engine_;
  Workload workload_;
  bool on_device_;
  std::unique_ptr<DeviceTracer> tracer_;
  std::string reason_, library_, note_;
  CallTrace call_;
  std::vector<float> actions_;
  SteadyClock::time_point call_start_;
  double untraced_ms_ = 0, traced_ms_ = 0, run_us_ = 0;
  std::optional<double> untraced_device_ms_;
  size_t dropped_ = 0, launches_ = 1;
};

int run_trace(const TraceOptions& options) {
  // Before minutes of loading: a name that cannot be written is found now.
  const bool existed = std::filesystem::exists(options.out);
  if (!std::ofstream(options.out, std::ios::app)) {
    throw_bad_input("cannot write '{}'. Check the directory and its rights.", options.out);
  }
  if (!existed) std::filesystem::remove(options.out);
  Session session = open_session(options.model);
  Tracing(options, session).run();
  return kExitOk;
}

}  // namespace

Command add_trace(CLI::App& app) {
  auto options = std::make_shared<TraceOptions>();
  options->model.add_to(app);
  options->workload.add_to(app);
  app.add_option("--out", options->out, "the trace: FILE.json, or FILE.json.gz")->required();
  app.add_flag("--no-kernels", options->no_kernels, "on a card: operations by events only, without a tracer library");
  app.add_option("--untraced", options->untraced,
                 "calls without tracing before, to compare with (0: 20 on a card, else 2)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  return [options] { return run_trace(*options); };
}

}  // namespace tendon::cli
