// tendon bench: latency of whole calls, by percentile and by stage, beside what the device's limits allow.
#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include "base/check.h"
#include "buckets.h"
#include "commands.h"
#include "estimate.h"
#include "floor.h"
#include "measure.h"
#include "session.h"
#include "streaming.h"
#include "sweep.h"
#include "version.h"
#include "workload.h"

namespace tendon::cli {
namespace {

using Json = nlohmann::ordered_json;

// Raised when a field changes its name or meaning. docs/bench.md lists the fields.
constexpr int kBenchSchema = 2;

struct BenchOptions {
  ModelOptions model;
  WorkloadOptions workload;
  MeasureOptions measure;
  BucketOptions buckets;
  std::string json, csv, estimate;
  SweepOptions sweep;
  bool streaming = false;
};

// One run of the command: what was set up, what was measured.
struct Report {
  const BenchOptions& options;
  const Session& session;
  const Workload& workload;
  const Measured& measured;
  Floor floor;
  MemoryUse memory;

  const Engine& engine() const { return *session.engine; }
  const Plan& plan() const { return engine().plan(); }
  double gpu_used_gb() const { return static_cast<double>(session.device_bytes_used()) * 1e-9; }
};

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json json_of(const Floor& floor, const Measured& measured) {
  Json json = {{"ms", or_null(floor.ms)}, {"share", nullptr}, {"missing", nullptr}};
  if (floor.ms) json["share"] = *floor.ms / measured.wall.percentile(50);
  if (!floor.missing.empty()) json["missing"] = floor.missing;
  return json;
}

Json json_of(const Energy& energy) {
  Json json = {{"j_per_call", or_null(energy.j_per_call)},
               {"mean_w", or_null(energy.mean_w)},
               {"core_mhz", or_null(energy.core_mhz)},
               {"memory_mhz", or_null(energy.memory_mhz)},
               {"idle_w", or_null(energy.idle_w)},
               {"j_per_call_above_idle", or_null(energy.j_per_call_above_idle())},
               {"calls_per_j", energy.j_per_call ? Json(1 / *energy.j_per_call) : Json()},
               {"slowed_by", or_null(energy.slowed_by)},
               {"calls", energy.calls},
               {"seconds", energy.seconds},
               {"missing", nullptr}};
  if (!energy.missing.empty()) json["missing"] = energy.missing;
  return json;
}

Json json_of(const Report& r) {
  const Measured& m = r.measured;
  const double p50 = m.wall.percentile(50);
  const StartTimes& start = r.engine().start_times();
  Json json = {
      {"schema", kBenchSchema},
      {"version", TENDON_VERSION},
      {"commit", TENDON_COMMIT},
      {"device", describe_device(*r.session.backend)},
      {"checkpoint", r.options.model.checkpoint},
      {"precision", r.options.model.precision_text()},
      {"views", r.options.workload.views},
      {"prompt_tokens", r.workload.prompt_tokens()},
      {"prefix_rows", r.engine().bucket().prefix_rows},
      {"horizon", r.session.model.config.horizon},
      {"steps", r.engine().schedule().times.size()},
      {"batch", r.options.workload.batch},
      {"caches", r.options.measure.cold ? "cold" : "warm"},
      {"calls", m.wall.count()},
      {"wall_ms", percentiles(m.wall)},
      {"device_ms", m.device ? percentiles(*m.device) : Json()},
      {"first_call_ms", m.first_call_ms},
      {"hz", 1e3 / p50},
      {"samples_per_s", 1e3 / p50 * static_cast<double>(r.options.workload.batch)},
      {"floor", json_of(r.floor, m)},
      {"energy", json_of(m.energy)},
      {"seconds",
       {{"backend", r.session.open_s},
        {"load", r.session.load_s},
        {"tables", start.tables_s},
        {"weights", start.weights_s},
        {"weights_gb_per_s",
         start.weights_s > 0 ? static_cast<double>(r.engine().store().copied_bytes()) / start.weights_s * 1e-9 : 0},
        {"ready", r.session.ready_s},
        {"prepared", start.plans_s},
        {"plan", m.plan_s},
        {"start_to_ready", r.session.open_s + r.session.load_s + r.session.ready_s + m.plan_s}}},
      {"memory_bytes",
       {{"weights_in_place", r.engine().store().in_place_bytes()},
        {"weights_copied", r.engine().store().copied_bytes()},
        {"weights_made_on_device", r.engine().store().made_bytes()},
        {"arena", r.plan().arena_bytes()},
        {"workspace", r.plan().workspace_bytes()},
        {"device_used", r.session.device_bytes_used()},
        {"process_peak", r.memory.peak}}}};
  json["buckets"] = describe_buckets(r.engine());
  for (const auto& [name, ms] : m.stage_ms) json["stage_ms"][name] = ms;
  for (const StageFloor& stage : r.floor.stages) {
    json["stages"].push_back({{"stage", stage.name},
                              {"ms", json["stage_ms"].value(stage.name, 0.0)},
                              {"floor_ms", r.floor.ms ? Json(stage.ms) : Json()},
                              {"gflop", stage.cost.flops * 1e-9},
                              {"weight_gb", stage.cost.weight_bytes * 1e-9}});
  }
  for (const auto& [name, sum] : m.ops) {
    json["ops"].push_back({{"op", name},
                           {"count", sum.count},
                           {"ms", sum.us * 1e-3},
                           {"gflop_per_s", sum.us > 0 ? sum.flops / sum.us * 1e-3 : 0}});
  }
  return json;
}

void write_csv(const Report& r) {
  std::ofstream csv(r.options.csv);
  const Times& wall = r.measured.wall;
  csv << "checkpoint,precision,views,prompt_tokens,horizon,steps,batch,calls,p50_ms,p90_ms,p99_ms,max_ms\n";
  csv << fmt::format("{},{},{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{:.3f}\n", r.options.model.checkpoint,
                     r.options.model.precision_text(), r.options.workload.views, r.workload.prompt_tokens(),
                     r.session.model.config.horizon, r.engine().schedule().times.size(), r.options.workload.batch,
                     wall.count(), wall.percentile(50), wall.percentile(90), wall.percentile(99), wall.max());
  if (!csv.flush()) throw_bad_input("cannot write '{}'. Check the directory and its rights.", r.options.csv);
}

void print_times(const char* what, const Times& times) {
  fmt::print("{:<7} p50 {:.2f} ms   p90 {:.2f}   p99 {:.2f}   max {:.2f}\n", what, times.percentile(50),
             times.percentile(90), times.percentile(99), times.max());
}

void print_stages(const Report& r) {
  fmt::print("\n{:<16} {:>10} {:>10} {:>8} {:>10} {:>10}\n", "stage", "p50 ms", "floor ms", "share", "TFLOP",
             "weights GB");
  const auto row = [&](const std::string& name, double ms, double floor_ms, const Cost& cost) {
    const std::string limit = r.floor.ms ? fmt::format("{:.2f}", floor_ms) : "-";
    const std::string share = r.floor.ms ? fmt::format("{:.0f}%", 100 * floor_ms / ms) : "-";
    fmt::print("{:<16} {:>10.2f} {:>10} {:>8} {:>10.3f} {:>10.2f}\n", name, ms, limit, share, cost.flops * 1e-12,
               cost.weight_bytes * 1e-9);
  };
  Cost total;
  for (const auto& [name, ms] : r.measured.stage_ms) {
    const auto floor = std::ranges::find(r.floor.stages, name, &StageFloor::name);
    if (floor == r.floor.stages.end()) continue;
    row(name, ms, floor->ms, floor->cost);
    total += floor->cost;
  }
  row("call", r.measured.wall.percentile(50), r.floor.ms.value_or(0), total);
  if (!r.floor.missing.empty()) fmt::print("no floor: {}\n", r.floor.missing);
}

void print_ops(const Report& r) {
  fmt::print("\n{:<16} {:>6} {:>10} {:>7} {:>10}{}\n", "operation", "count", "ms", "share", "GFLOP/s",
             r.measured.device ? "   (launched one by one)" : "");
  std::vector<std::pair<std::string, OpClass>> ops(r.measured.ops.begin(), r.measured.ops.end());
  std::ranges::sort(ops, [](const auto& a, const auto& b) { return a.second.us > b.second.us; });
  double all_us = 0;
  for (const auto& [name, sum] : ops) all_us += sum.us;
  for (const auto& [name, sum] : ops) {
    const std::string rate = sum.flops > 0 ? fmt::format("{:.1f}", sum.flops / sum.us * 1e-3) : "-";
    fmt::print("{:<16} {:>6} {:>10.2f} {:>6.1f}% {:>10}\n", name, sum.count, sum.us * 1e-3, 100 * sum.us / all_us,
               rate);
  }
}

void print_energy(const Energy& energy) {
  if (energy.j_per_call) {
    fmt::print("energy {:.2f} J a call, {:.0f} W on average (idle power included), {} calls in {:.1f} s\n",
               *energy.j_per_call, *energy.mean_w, energy.calls, energy.seconds);
  }
  if (const auto net = energy.j_per_call_above_idle()) {
    fmt::print("       {:.2f} J a call without the {:.0f} W of an idle card\n", *net, *energy.idle_w);
  }
  if (energy.slowed_by && !energy.slowed_by->empty()) fmt::print("THE CLOCKS WERE HELD DOWN: {}\n", *energy.slowed_by);
  if (energy.core_mhz) fmt::print("clocks {:.0f} MHz", *energy.core_mhz);
  if (energy.memory_mhz) fmt::print(", memory {:.0f} MHz", *energy.memory_mhz);
  if (energy.core_mhz || energy.memory_mhz) fmt::print("\n");
  if (!energy.missing.empty()) fmt::print("energy: {}\n", energy.missing);
}

void print(const Report& r) {
  const Measured& m = r.measured;
  const DeviceInfo device = r.session.backend->info();
  fmt::print("{}: {} ({}){}{}{}{}\n", r.session.backend->name(), device.name, device.architecture,
             device.driver.empty() ? "" : ", driver ", device.driver, device.runtime.empty() ? "" : ", ",
             device.runtime);
  fmt::print("{} {}, batch {}, {} views, {} prompt tokens (prefix {}), horizon {}, {} steps, {} calls{}\n",
             r.options.model.checkpoint, r.options.model.precision_text(), r.options.workload.batch,
             r.options.workload.views, r.workload.prompt_tokens(), r.engine().bucket().prefix_rows,
             r.session.model.config.horizon, r.engine().schedule().times.size(), m.wall.count(),
             r.options.measure.cold ? ", caches emptied before each" : "");
  print_times("call", m.wall);
  if (m.device) print_times("device", *m.device);
  fmt::print("        {:.2f} Hz, first call {:.2f} ms\n", 1e3 / m.wall.percentile(50), m.first_call_ms);
  print_stages(r);
  print_ops(r);
  fmt::print("\n");
  print_energy(m.energy);
  const WeightStore& store = r.engine().store();
  const StartTimes& start = r.engine().start_times();
  fmt::print(
      "start  backend {:.2f} s, load {:.2f} s, tables {:.2f} s, weights {:.2f} s, plans {:.2f} s; ready after {:.2f} "
      "s\n",
      r.session.open_s, r.session.load_s, start.tables_s, start.weights_s, start.plans_s + m.plan_s,
      r.session.open_s + r.session.load_s + r.session.ready_s + m.plan_s);
  fmt::print(
      "memory weights {:.2f} GB in place + {:.2f} GB copied or tabulated, arena {:.0f} MB, workspace {:.0f} MB, "
      "process "
      "peak {:.2f} GB",
      static_cast<double>(store.in_place_bytes()) * 1e-9, static_cast<double>(store.copied_bytes()) * 1e-9,
      static_cast<double>(r.plan().arena_bytes()) * 1e-6, static_cast<double>(r.plan().workspace_bytes()) * 1e-6,
      static_cast<double>(r.memory.peak) * 1e-9);
  if (!r.session.backend->uses_host_memory()) fmt::print(", on the device {:.2f} GB", r.gpu_used_gb());
  fmt::print("\n");
}

int run_bench(const BenchOptions& options) {
  if (!options.estimate.empty()) {
    estimate(options.estimate, options.model, options.workload, options.json);
    return kExitOk;
  }
  if (!options.sweep.ranges.empty()) {
    return sweep(options.sweep, options.model, options.workload, options.measure, options.json);
  }
  if (options.streaming) return streaming(options.model, options.workload, options.measure, options.json);
  if (!options.sweep.baseline.empty()) throw_bad_use("--baseline compares the rows of a --sweep; give one");
  Session session = open_session(options.model, {.prepared = options.buckets.parse()});
  const Workload workload(session.model.config, options.workload);
  const Measured measured = measure(*session.engine, workload, options.measure);
  const DeviceLimits limits = session.backend->info().limits;
  const Report report{.options = options,
                      .session = session,
                      .workload = workload,
                      .measured = measured,
                      .floor = floor_of(session.engine->plan(), limits, session.engine->options().precision),
                      .memory = memory_use()};
  if (!options.csv.empty()) write_csv(report);
  if (!options.json.empty()) write_json(json_of(report), options.json);
  if (options.json != "-") print(report);
  return kExitOk;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  options->model.add_to(app);
  options->workload.add_to(app);
  options->buckets.add_to(app);
  app.add_option("--iters", options->measure.iters, "timed calls (default: at least 3 and --seconds)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seconds", options->measure.seconds, "least time to measure when --iters is not given")
      ->capture_default_str();
  app.add_option("--power-seconds", options->measure.power_seconds,
                 "GPU: length of the energy measurement, 1 or more; 0 leaves it out")
      ->capture_default_str();
  app.add_option("--json", options->json, "write a JSON report to this file (- for standard output)");
  app.add_option("--estimate", options->estimate,
                 "measure nothing: the least times on a card of tuning/cards.csv (H100, MI300X, 5090, …)");
  app.add_flag("--cold", options->measure.cold, "empty the caches before each timed call");
  app.add_option(
         "--sweep", options->sweep.ranges,
         "one table of all combinations of batch=, views=, horizon=, precision=, prompt-tokens=, steps=, caches=: "
         "batch=1,2,4 views=1..3 caches=warm,cold")
      ->expected(1, -1);
  app.add_option("--baseline", options->sweep.baseline,
                 "JSON of an earlier --sweep: exit code 1 when a row became slower");
  app.add_option("--tolerance", options->sweep.tolerance_percent, "how much slower a row may be, in percent")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--csv", options->csv, "write a CSV row to this file");
  CLI::Option* const streaming =
      app.add_flag("--streaming", options->streaming,
                   "two frames under way, the front (vision, prefix) of one beside the back (denoise) of the other: Hz "
                   "and latency, beside the plain call's");
  for (const char* const other : {"--estimate", "--sweep", "--cold", "--csv", "--buckets"}) streaming->excludes(other);
  return [options] { return run_bench(*options); };
}

}  // namespace tendon::cli
