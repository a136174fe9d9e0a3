// tendon ladder: every optimisation switched on in turn, each measured, in one run on one device.
#include "ladder.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include "base/check.h"
#include "commands.h"
#include "compare.h"
#include "floor.h"
#include "measure.h"
#include "ops/compose.h"
#include "version.h"
#include "workload.h"

namespace tendon::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kLadderSchema = 1;

struct LadderOptions {
  ModelOptions model;
  WorkloadOptions workload;
  MeasureOptions measure;
  std::string json, svg, against = "cpu-f32";
};

class Ladder {
 public:
  explicit Ladder(const LadderOptions& options) : options_(options), quiet_(options.json == "-") {
    measure_ = options.measure;
    measure_.power_seconds = 0;
  }

  int run() {
    const std::vector<Rung> rungs = ladder_rungs(options_.model.precision);
    options_.model.require_codes_in({rungs.back().precision});
    for (const Rung& rung : rungs) {
      try {
        results_.push_back(measure_rung(rung));
      } catch (const Error& error) {
        if (results_.empty() || error.kind() != ErrorKind::kDevice) throw;
        // The rungs above it are worth having all the same.
        failures_.emplace_back(rung.name, error.what());
        log_warning(stderr_log(), "rung '{}' was left out: {}", rung.name, error.what());
        continue;
      }
      if (!quiet_) print_row(results_.back());
    }
    if (!quiet_) print_end();
    if (!options_.svg.empty()) write_chart();
    if (!options_.json.empty()) write_json(json(), options_.json);
    return failures_.empty() ? kExitOk : kExitDevice;
  }

 private:
  // The floor is that of the user's precision.
  bool has_floor(const Rung& rung) const { return rung.precision == options_.model.precision; }

  RungResult measure_rung(const Rung& rung) {
    const ModelOptions model = on_rung(options_.model, rung);
    const std::unique_ptr<Backend> backend = make_backend(model.backend, model.backend_options());
    if (!loaded_) load(*backend);
    Engine engine(*backend, loaded_->config, loaded_->weights, model.engine_options(loaded_->config, stated()));
    const Workload workload(loaded_->config, options_.workload);
    if (results_.empty()) begin(engine, workload);
    const Measured measured = measure(engine, workload, calls_for(engine, workload));
    RungResult result{.rung = rung,
                      .p50_ms = measured.wall.percentile(50),
                      .stage_ms = measured.stage_ms,
                      .kernels = engine.plan().device_work(),
                      .operations = engine.plan().ops().size()};
    if (!reference_.empty()) {
      std::vector<float> actions;
      call(engine, workload, actions);
      Distance distance;
      distance.add(actions.data(), reference_.data(), std::ssize(actions));
      result.relative = distance.relative(), result.max_abs = distance.max_abs, result.cosine = distance.cosine();
    }
    if (has_floor(rung)) floor_ = floor_of(engine.plan(), backend->info().limits, engine.options().precision);
    return result;
  }

  // The plainest rungs take many times longer than the last: fewer calls of them.
  MeasureOptions calls_for(Engine& engine, const Workload& workload) const {
    constexpr double kSecondsOfCalls = 1;
    std::vector<float> actions;
    call(engine, workload, actions);  // makes the plan
    const double start = now_s();
    call(engine, workload, actions);
    const auto fitting = static_cast<int64_t>(kSecondsOfCalls / std::max(now_s() - start, 1e-6));
    MeasureOptions options = measure_;
    options.iters = std::min(measure_.iters, std::max<int64_t>(fitting, 3));
    return options;
  }

  CheckpointConfig stated() const {
    return loaded_->checkpoint == nullptr ? CheckpointConfig{} : loaded_->checkpoint->config();
  }

  void load(const Backend& backend) {
    LoadOptions load = options_.model.load_options();
    if (!backend.uses_host_memory()) load.making = Making::kWhenAsked;
    loaded_ = load_model(options_.model.checkpoint, load, stderr_log(), stderr_progress("making weights"));
    device_ = describe_device(backend);
    on_device_ = !backend.uses_host_memory();
    if (measure_.iters == 0) measure_.iters = on_device_ ? 100 : 3;
  }

  // The actions that all rungs are compared with, and what the table says first.
  void begin(const Engine& engine, const Workload& workload) {
    if (options_.against == "cpu-f32") {
      EngineOptions exact = engine.options();
      exact.precision = DType::kF32;
      exact.folds = {};
      exact.plan = {};
      const std::unique_ptr<Backend> cpu = make_backend("cpu", options_.model.backend_options());
      Engine oracle(*cpu, loaded_->config, loaded_->weights, exact);
      call(oracle, workload, reference_);
    }
    workload_ =
        fmt::format("{} {}, batch {}, {} views, {} prompt tokens, horizon {}, {} steps", options_.model.checkpoint,
                    options_.model.precision_text(), options_.workload.batch, options_.workload.views,
                    workload.prompt_tokens(), loaded_->config.horizon, engine.schedule().times.size());
    if (quiet_) return;
    fmt::print("{}: {} ({}), commit {}\n{}, up to {} calls a rung\n", device_["backend"].get<std::string>(),
               device_["name"].get<std::string>(), device_["architecture"].get<std::string>(), TENDON_COMMIT, workload_,
               measure_.iters);
    if (!on_device_) fmt::print("A host computes every rung in nearly the same way; the ladder is made for cards.\n");
    fmt::print("\n{:<20} {:>9} {:>8} {:>8}  {:<34} {}\n", "rung", "p50 ms", "× first", "kernels", "stages ms",
               reference_.empty() ? "" : "actions against f32: relative, largest");
    std::fflush(stdout);
  }

  void print_row(const RungResult& r) const {
    std::string stages;
    for (const auto& [name, ms] : r.stage_ms) stages += fmt::format("{} {:.2f}  ", name, ms);
    const std::string error = r.relative ? fmt::format("{:.2e}  {:.2e}", *r.relative, *r.max_abs) : "";
    fmt::print("{:<20} {:>9.2f} {:>8.2f} {:>8}  {:<34} {}\n", r.rung.name, r.p50_ms, results_.front().p50_ms / r.p50_ms,
               r.kernels ? std::to_string(*r.kernels) : "-", stages, error);
    std::fflush(stdout);
  }

  void print_end() const {
    fmt::print("\n");
    for (const RungResult& r : results_) fmt::print("{:<20} {}\n", r.rung.name, r.rung.what);
    if (floor_.ms) {
      const auto share = [&](const RungResult& r) { return 100 * *floor_.ms / r.p50_ms; };
      const auto last = std::ranges::find_if(results_.rbegin(), results_.rend(),
                                             [&](const RungResult& r) { return has_floor(r.rung); });
      fmt::print("\nfloor in {} {:.2f} ms: of it the rung '{}' reaches {:.0f} %, '{}' {:.0f} %\n",
                 options_.model.precision, *floor_.ms, results_.front().rung.name, share(results_.front()),
                 last->rung.name, share(*last));
    } else {
      fmt::print("\nno floor: {}\n", floor_.missing);
    }
  }

  void write_chart() const {
    const std::string driver = device_["driver"].get<std::string>();
    std::ofstream file(options_.svg);
    file << ladder_chart(results_, floor_.ms, workload_,
                         fmt::format("{}{}{}, commit {}, median of up to {} calls", device_["name"].get<std::string>(),
                                     driver.empty() ? "" : ", driver ", driver, TENDON_COMMIT, measure_.iters));
    if (!file.flush()) throw_bad_input("cannot write '{}'. Check the directory and its rights.", options_.svg);
  }

  Json json() const {
    const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(); };
    Json json = {{"schema", kLadderSchema},        {"kind", "ladder"},        {"version", TENDON_VERSION},
                 {"commit", TENDON_COMMIT},        {"device", device_},       {"checkpoint", options_.model.checkpoint},
                 {"workload", workload_},          {"calls", measure_.iters}, {"against", options_.against},
                 {"floor_ms", or_null(floor_.ms)}, {"rungs", Json::array()}};
    for (const RungResult& r : results_) {
      Json row = {{"rung", r.rung.name},
                  {"what", r.rung.what},
                  {"graph", r.rung.graph},
                  {"gemm_table", r.rung.gemm_table},
                  {"precision", on_rung(options_.model, r.rung).precision_text()},
                  {"expand", r.rung.expand},
                  {"without", r.rung.without},
                  {"p50_ms", r.p50_ms},
                  {"times_first", results_.front().p50_ms / r.p50_ms},
                  {"share_of_floor", floor_.ms && has_floor(r.rung) ? Json(*floor_.ms / r.p50_ms) : Json()},
                  {"kernels", or_null(r.kernels)},
                  {"operations", r.operations},
                  {"relative", or_null(r.relative)},
                  {"max_abs", or_null(r.max_abs)},
                  {"cosine", or_null(r.cosine)}};
      for (const auto& [name, ms] : r.stage_ms) row["stage_ms"][name] = ms;
      json["rungs"].push_back(std::move(row));
    }
    for (const auto& [rung, error] : failures_) json["failed"].push_back({{"rung", rung}, {"error", error}});
    return json;
  }

  const LadderOptions& options_;
  bool quiet_, on_device_ = false;
  MeasureOptions measure_;
  std::optional<LoadedModel> loaded_;
  Json device_;
  std::string workload_;
  std::vector<float> reference_;  // actions in f32
  std::vector<RungResult> results_;
  std::vector<std::pair<std::string, std::string>> failures_;  // rung, error
  Floor floor_;
};

void leave(std::vector<std::string>& list, std::initializer_list<std::string_view> gone) {
  std::erase_if(list, [&](const std::string& name) { return std::ranges::find(gone, name) != gone.end(); });
}

}  // namespace

std::vector<Rung> ladder_rungs(const std::string& precision) {
  const std::vector<std::string_view> fused = fused_operations();
  Rung rung{.name = "eager",
            .what = "one kernel an operation, launched one by one; products by the library's own choice",
            .graph = false,
            .gemm_table = false,
            .expand = {fused.begin(), fused.end()},
            .without = {"attention (mma", "attention (wgmma", "attention_cluster", "few_rows"},
            .precision = precision};
  std::vector<Rung> rungs{rung};
  const auto add = [&](const char* name, const char* what) {
    rung.name = name, rung.what = what;
    rungs.push_back(rung);
  };
  rung.graph = true;
  add("graph", "the whole call is one graph");
  leave(rung.without, {"attention (mma", "attention (wgmma", "attention_cluster"});
  add("attention", "attention on tensor cores, scores never in memory");
  rung.gemm_table = true;
  add("GEMM choice", "the fastest kernel measured for each shape of product");
  leave(rung.expand, {"layer_norm_qkv", "norm_qkv_rope", "norm_gate_up_gelu"});
  add("fused projections", "q, k and v as one product, gate and up as one; RoPE writes the cache");
  leave(rung.expand, {"patch_embed", "layer_norm_linear", "linear_residual", "attention_to_codes"});
  add("fused epilogues", "bias, activation, residual and position table inside the products");
  leave(rung.without, {"few_rows"});
  add("few rows", "the action expert's products with norm and tail in one kernel, launches that overlap");
  leave(rung.expand, {"denoise_loop"});
  add("persistent loop", "all denoise steps as one kernel, where the card and the rows allow it");
  if (precision == "bf16") {
    rung.precision = "int8";
    add("8-bit operands",
        "products on i8 codes (--precision int8, the prefix's unless --codes says others); another result");
  }
  return rungs;
}

ModelOptions on_rung(const ModelOptions& options, const Rung& rung) {
  ModelOptions model = options;
  model.no_graph = options.no_graph || !rung.graph;
  if (!rung.gemm_table) model.gemm_table = "none";
  model.set_precision(rung.precision);
  model.expand.insert(model.expand.end(), rung.expand.begin(), rung.expand.end());
  model.without.insert(model.without.end(), rung.without.begin(), rung.without.end());
  return model;
}

Command add_ladder(CLI::App& app) {
  auto options = std::make_shared<LadderOptions>();
  options->model.add_to(app);
  options->workload.add_to(app);
  app.add_option("--iters", options->measure.iters, "timed calls a rung (default: 100 on a card, 3 on a host)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--against", options->against, "what the actions are compared with: cpu-f32 or none")
      ->check(CLI::IsMember({"cpu-f32", "none"}))
      ->capture_default_str();
  app.add_option("--json", options->json, "write a JSON report to this file (- for standard output)");
  app.add_option("--svg", options->svg, "write a chart to this file");
  return [options] { return Ladder(*options).run(); };
}

}  // namespace tendon::cli
