// tendon bench: latency of whole calls, by percentile and by stage.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include <fmt/format.h>

#include "base/check.h"
#include "commands.h"
#include "ops/cost.h"
#include "session.h"
#include "version.h"
#include "workload.h"

namespace tendon::cli {
namespace {

struct BenchOptions {
  ModelOptions model;
  WorkloadOptions workload;
  int64_t iters = 0;
  double seconds = 10;
  std::string json, csv;
};

// Nearest-rank percentile of sorted values.
double percentile(const std::vector<double>& sorted, double p) {
  const auto rank = static_cast<size_t>(std::ceil(p / 100 * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

struct OpClass {
  double us = 0, flops = 0;
  int64_t count = 0;
};

struct Measured {
  int64_t op_timed_calls = 0;
  std::vector<double> wall_ms;                           // sorted
  std::vector<std::pair<std::string, double>> stage_ms;  // median
  std::map<std::string, OpClass> ops;                    // means over the timed calls
};

Measured measure(Engine& engine, const Workload& workload, const BenchOptions& options) {
  std::vector<float> actions(workload.samples().size() *
                             static_cast<size_t>(engine.config().horizon * engine.config().action_dim));
  // Timing each operation costs a GPU its one-launch graph, so there calls are timed whole and operations afterwards.
  const bool apart = !engine.backend().uses_host_memory();
  OpTimes times;
  const auto call = [&](OpTimes* op_times) {
    const double start = now_s();
    const Status status = engine.infer(workload.samples(), actions, op_times);
    if (!status.is_ok())
      throw Error(status.code() == StatusCode::kDevice ? ErrorKind::kDevice : ErrorKind::kBadInput, status.message());
    return (now_s() - start) * 1e3;
  };
  call(nullptr);  // makes the plan and warms up
  Measured measured;
  std::map<std::string, std::vector<double>> stages;
  std::vector<std::string> stage_order;
  const auto add_op_times = [&] {
    for (const StageTime& stage : stage_times(engine.plan(), times)) {
      if (!stages.contains(stage.name)) stage_order.push_back(stage.name);
      stages[stage.name].push_back(stage.us * 1e-3);
    }
    const std::vector<Op>& ops = engine.plan().ops();
    for (size_t at = 0; at < ops.size(); ++at) {
      OpClass& sum = measured.ops[std::string(op_name(ops[at]))];
      sum.us += times.duration_us[at];
      sum.flops += cost(ops[at]).flops;
      ++sum.count;
    }
    ++measured.op_timed_calls;
  };
  const double begin = now_s();
  for (int64_t i = 0; options.iters > 0 ? i < options.iters : (i < 3 || now_s() - begin < options.seconds); ++i) {
    measured.wall_ms.push_back(call(apart ? nullptr : &times));
    if (!apart) add_op_times();
  }
  for (int i = 0; apart && i < 5; ++i) {
    call(&times);
    add_op_times();
  }
  const auto calls = static_cast<double>(measured.op_timed_calls);
  for (auto& [name, sum] : measured.ops) {
    sum.us /= calls;
    sum.flops /= calls;
    sum.count /= measured.op_timed_calls;
  }
  std::ranges::sort(measured.wall_ms);
  for (const std::string& name : stage_order) {
    std::ranges::sort(stages[name]);
    measured.stage_ms.emplace_back(name, percentile(stages[name], 50));
  }
  return measured;
}

int run_bench(const BenchOptions& options) {
  Session session = open_session(options.model);
  const Workload workload(session.model.config, options.workload);
  const Measured measured = measure(*session.engine, workload, options);
  const MemoryUse memory = memory_use();
  const WeightStore& store = session.engine->store();
  const Plan& plan = session.engine->plan();
  const double p50 = percentile(measured.wall_ms, 50);

  nlohmann::ordered_json json = {{"schema", 1},
                                 {"version", TENDON_VERSION},
                                 {"commit", TENDON_COMMIT},
                                 {"device", describe_device(*session.backend)},
                                 {"checkpoint", options.model.checkpoint},
                                 {"precision", options.model.precision},
                                 {"views", options.workload.views},
                                 {"prompt_tokens", workload.prompt_tokens()},
                                 {"prefix_rows", session.engine->bucket().prefix_rows},
                                 {"horizon", session.model.config.horizon},
                                 {"steps", session.engine->schedule().times.size()},
                                 {"batch", options.workload.batch},
                                 {"calls", measured.wall_ms.size()},
                                 {"wall_ms",
                                  {{"p50", p50},
                                   {"p90", percentile(measured.wall_ms, 90)},
                                   {"p99", percentile(measured.wall_ms, 99)},
                                   {"max", measured.wall_ms.back()},
                                   {"min", measured.wall_ms.front()}}},
                                 {"hz", 1e3 / p50},
                                 {"samples_per_s", 1e3 / p50 * static_cast<double>(options.workload.batch)},
                                 {"seconds", {{"load", session.load_s}, {"ready", session.ready_s}}},
                                 {"memory_bytes",
                                  {{"weights_in_place", store.in_place_bytes()},
                                   {"weights_copied", store.copied_bytes()},
                                   {"arena", plan.arena_bytes()},
                                   {"workspace", plan.workspace_bytes()},
                                   {"process_peak", memory.peak}}}};
  for (const auto& [name, ms] : measured.stage_ms) json["stage_ms"][name] = ms;
  for (const auto& [name, sum] : measured.ops) {
    json["ops"].push_back({{"op", name},
                           {"count", sum.count},
                           {"ms", sum.us * 1e-3},
                           {"gflop_per_s", sum.us > 0 ? sum.flops / sum.us * 1e-3 : 0}});
  }
  if (!options.csv.empty()) {
    std::ofstream csv(options.csv);
    csv << "checkpoint,precision,views,prompt_tokens,horizon,steps,batch,calls,p50_ms,p90_ms,p99_ms,max_ms\n";
    csv << fmt::format("{},{},{},{},{},{},{},{},{:.3f},{:.3f},{:.3f},{:.3f}\n", options.model.checkpoint,
                       options.model.precision, options.workload.views, workload.prompt_tokens(),
                       session.model.config.horizon, session.engine->schedule().times.size(), options.workload.batch,
                       measured.wall_ms.size(), p50, percentile(measured.wall_ms, 90), percentile(measured.wall_ms, 99),
                       measured.wall_ms.back());
    if (!csv.flush()) throw_bad_input("cannot write '{}'. Check the directory and its rights.", options.csv);
  }
  if (!options.json.empty()) write_json(json, options.json);
  if (options.json == "-") return kExitOk;

  fmt::print("{} {}, batch {}, {} views, {} prompt tokens (prefix {}), horizon {}, {} steps, {} calls\n",
             options.model.checkpoint, options.model.precision, options.workload.batch, options.workload.views,
             workload.prompt_tokens(), session.engine->bucket().prefix_rows, session.model.config.horizon,
             session.engine->schedule().times.size(), measured.wall_ms.size());
  fmt::print("call   p50 {:.2f} ms   p90 {:.2f}   p99 {:.2f}   max {:.2f}   ({:.2f} Hz)\n\n", p50,
             percentile(measured.wall_ms, 90), percentile(measured.wall_ms, 99), measured.wall_ms.back(), 1e3 / p50);
  fmt::print("{:<16} {:>10}\n", "stage", "p50 ms");
  for (const auto& [name, ms] : measured.stage_ms) fmt::print("{:<16} {:>10.2f}\n", name, ms);
  fmt::print("\n{:<16} {:>6} {:>10} {:>7} {:>10}\n", "operation", "count", "ms", "share", "GFLOP/s");
  std::vector<std::pair<std::string, OpClass>> ops(measured.ops.begin(), measured.ops.end());
  std::ranges::sort(ops, [](const auto& a, const auto& b) { return a.second.us > b.second.us; });
  double all_us = 0;
  for (const auto& [name, sum] : ops) all_us += sum.us;
  for (const auto& [name, sum] : ops) {
    const std::string rate = sum.flops > 0 ? fmt::format("{:.1f}", sum.flops / sum.us * 1e-3) : "-";
    fmt::print("{:<16} {:>6} {:>10.2f} {:>6.1f}% {:>10}\n", name, sum.count, sum.us * 1e-3, 100 * sum.us / all_us,
               rate);
  }
  fmt::print(
      "\nload {:.2f} s, ready {:.2f} s later; weights {:.2f} GB in place + {:.2f} GB copied or tabulated, arena {:.0f} "
      "MB, workspace {:.0f} MB, process peak {:.2f} GB\n",
      session.load_s, session.ready_s, static_cast<double>(store.in_place_bytes()) * 1e-9,
      static_cast<double>(store.copied_bytes()) * 1e-9, static_cast<double>(plan.arena_bytes()) * 1e-6,
      static_cast<double>(plan.workspace_bytes()) * 1e-6, static_cast<double>(memory.peak) * 1e-9);
  return kExitOk;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  options->model.add_to(app);
  options->workload.add_to(app);
  app.add_option("--iters", options->iters, "timed calls (default: at least 3 and --seconds)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seconds", options->seconds, "least time to measure when --iters is not given")
      ->capture_default_str();
  app.add_option("--json", options->json, "write a JSON report to this file (- for standard output)");
  app.add_option("--csv", options->csv, "write a CSV row to this file");
  return [options] { return run_bench(*options); };
}

}  // namespace tendon::cli
