// tendon check: how far each stage is from a reference, the CPU backend in f32 or a file of golden values, and whether
// calls repeat.
#include <optional>

#include <fmt/format.h>

#include "base/check.h"
#include "checkpoint/safetensors.h"
#include "commands.h"
#include "compare.h"
#include "measure.h"
#include "session.h"
#include "workload.h"

namespace tendon::cli {
namespace {

struct CheckOptions {
  ModelOptions model;
  WorkloadOptions workload;
  std::string against = "cpu-f32";
  int64_t repeat_identical = 0;
  bool json = false;
};

// Runs the engine on a workload; the plan's taps can be read afterwards.
void run_workload(Engine& engine, const Workload& workload) {
  std::vector<float> actions;
  call(engine, workload, actions);
}

// The actions of an engine that keeps nothing in between, as in service: there larger operations run as one kernel.
// Nothing where the host computes: it runs the same operations either way.
std::optional<std::vector<float>> served_actions(Backend& backend, const ModelConfig& config, const Weights& weights,
                                                 EngineOptions options, const Workload& workload) {
  if (backend.uses_host_memory()) return {};
  options.taps = false;
  Engine engine(backend, config, weights, options);
  std::vector<float> actions;
  call(engine, workload, actions);
  return actions;
}

// --- against another engine -----------------------------------------------------------------------------------------

struct Stage {
  std::string name;
  Quantity quantity;
};

std::vector<Stage> stages_of(const ModelConfig& config, int64_t steps) {
  std::vector<Stage> stages{
      {"vision.embed", Quantity::kVision}, {"image_features", Quantity::kVision}, {"prefix_embeds", Quantity::kVision}};
  for (int64_t layer = 0; layer < config.depth; ++layer) {
    stages.push_back({"k_cache." + std::to_string(layer), Quantity::kKey});
    stages.push_back({"v_cache." + std::to_string(layer), Quantity::kValue});
  }
  stages.push_back({"suffix_embeds.0", Quantity::kHidden});
  stages.push_back({"expert_out.0", Quantity::kHidden});
  for (int64_t step = 0; step < steps; ++step) stages.push_back({"v." + std::to_string(step), Quantity::kVelocity});
  stages.push_back({"actions", Quantity::kActions});
  return stages;
}

ErrorTable check_against_cpu(const CheckOptions& options, Session& session) {
  const EngineOptions& tested = session.engine->options();
  EngineOptions reference = tested;
  reference.precision = DType::kF32;
  reference.folds = {};
  const std::unique_ptr<Backend> cpu = make_backend("cpu", options.model.backend_options());
  Engine oracle(*cpu, session.model.config, session.model.weights, reference);

  const Workload workload(session.model.config, options.workload);
  run_workload(*session.engine, workload);
  run_workload(oracle, workload);
  ErrorTable table;
  for (const Stage& stage : stages_of(session.model.config, std::ssize(oracle.schedule().times))) {
    if (!session.engine->plan().has(stage.name) || !oracle.plan().has(stage.name)) continue;
    const HostValue got = read_value(session.engine->plan(), stage.name);
    const HostValue want = read_value(oracle.plan(), stage.name);
    if (got.shape != want.shape) continue;  // a fold that is off changes what this stage holds
    Distance distance;
    distance.add(got.values.data(), want.values.data(), std::ssize(got.values));
    table.add(stage.name, distance, bound_for(stage.quantity, tested.precision, session.model.config));
  }
  if (const auto actions =
          served_actions(*session.backend, session.model.config, session.model.weights, tested, workload)) {
    Distance distance;
    distance.add(actions->data(), read_value(oracle.plan(), "actions").values.data(), std::ssize(*actions));
    table.add("actions as served", distance, bound_for(Quantity::kActions, tested.precision, session.model.config));
  }
  return table;
}

// --- against golden values
// --------------------------------------------------------------------------------------------

class Golden {
 public:
  Golden(const std::string& path, const EngineOptions& options)
      : file_(SafetensorsFile::open(path)),
        variant_(options.rope == RopeFrequencies::kExact ? "f32_exact" : "f32_rounded") {
    for (const char* name : {"ref/image_rows", "ref/prefix_positions", "h10/ref/time"}) {
      if (file_.find(name) == nullptr)
        throw_bad_input("{}: '{}' is missing; this is not a file of full-size golden values.", path, name);
    }
    for (const double row : to_doubles(file_.tensor("ref/image_rows")))
      image_rows_.push_back(static_cast<int64_t>(row));
    for (const double row : to_doubles(file_.tensor("ref/prefix_positions")))
      prefix_rows_.push_back(static_cast<int64_t>(row));
  }

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  HostValue get(const std::string& name) const {
    const Tensor tensor = file_.tensor(name);
    const std::vector<double> wide = to_doubles(tensor);
    return {tensor.shape, {wide.begin(), wide.end()}};
  }
  // "h10/<variant>/actions" for "h10/actions".
  std::string at(const std::string& group, const std::string& what) const {
    return group + "/" + variant_ + "/" + what;
  }
  // Values that only exist with exact frequencies.
  std::string exact(const std::string& group, const std::string& what) const { return group + "/f32_exact/" + what; }
  bool is_exact() const { return variant_ == "f32_exact"; }
  const std::vector<int64_t>& image_rows() const { return image_rows_; }
  const std::vector<int64_t>& prefix_rows() const { return prefix_rows_; }
  Schedule schedule() const {
    const HostValue times = get("h10/ref/time");
    return {times.values, static_cast<float>(-1.0 / static_cast<double>(times.values.size()))};
  }

 private:
  SafetensorsFile file_;
  std::string variant_;
  std::vector<int64_t> image_rows_, prefix_rows_;
};

// Rows `rows` of got, shifted by `first`, against consecutive rows of want; as many columns as want has.
Distance compare_rows(const HostValue& got, const std::vector<int64_t>& rows, int64_t first, const float* want,
                      int64_t want_cols) {
  Distance distance;
  for (size_t i = 0; i < rows.size(); ++i) {
    distance.add(got.values.data() + (first + rows[i]) * got.cols(), want + static_cast<int64_t>(i) * want_cols,
                 want_cols);
  }
  return distance;
}

class GoldenCheck {
 public:
  GoldenCheck(const Golden& golden, Engine& engine, ErrorTable& table)
      : golden_(golden), engine_(engine), table_(table) {}

  void vision() {
    const ModelConfig& c = engine_.config();
    const HostValue features = tap("image_features");
    for (size_t camera = 0; camera < std::size(kCameraSlotNames); ++camera) {
      const std::string name = "image_features." + std::string(kCameraSlotNames[camera]);
      const HostValue want = golden_.get(name);
      add(name,
          compare_rows(features, golden_.image_rows(), static_cast<int64_t>(camera) * c.vision.tokens(),
                       want.values.data(), want.cols()),
          Quantity::kVision);
    }
    const HostValue embed = golden_.get("vision/base_0_rgb/embed");
    add("vision.embed", compare_rows(tap("vision.embed"), golden_.image_rows(), 0, embed.values.data(), embed.cols()),
        Quantity::kHidden);
    layers("vision.layer.", golden_.get("vision/base_0_rgb/layers"), c.vision.depth, golden_.image_rows());
  }

  void prefix() {
    const ModelConfig& c = engine_.config();
    if (golden_.is_exact()) {
      const HostValue embeds = golden_.get(golden_.exact("prefix", "embeds"));
      add("prefix_embeds",
          compare_rows(tap("prefix_embeds"), golden_.prefix_rows(), 0, embeds.values.data(), embeds.cols()),
          Quantity::kHidden);
      layers("prefix.layer.", golden_.get(golden_.exact("prefix", "layers")), c.depth - 1, golden_.prefix_rows());
    }
    for (int64_t layer = 0; layer < c.depth; ++layer) {
      for (const char* const part : {"k", "v"}) {
        const std::string name = golden_.at("prefix", fmt::format("{}.{}", part, layer));
        if (!golden_.has(name)) continue;
        const HostValue want = golden_.get(name);
        const HostValue got = tap(fmt::format("{}_cache.{}", part, layer));
        add(fmt::format("{} of layer {}", part, layer),
            compare_rows(got, golden_.prefix_rows(), 0, want.values.data(), want.cols()),
            *part == 'k' ? Quantity::kKey : Quantity::kValue);
      }
    }
  }

  void expert(const std::string& group) {
    const int64_t horizon = engine_.config().horizon;
    const auto hidden = [&](const std::string& ours, const float* want, int64_t rows_of_want, int64_t cols) {
      std::vector<int64_t> rows;  // the reference's state row comes first and is not among ours
      for (int64_t i = 0; i < horizon; ++i) rows.push_back(i);
      add(group + " " + ours, compare_rows(tap(ours), rows, 0, want + (rows_of_want - horizon) * cols, cols),
          Quantity::kHidden);
    };
    if (golden_.is_exact()) {
      for (const auto& [theirs, ours] :
           {std::pair{"suffix_embeds_t0", "suffix_embeds.0"}, std::pair{"expert_out_t0", "expert_out.0"}}) {
        const std::string name = golden_.exact(group, theirs);
        if (!golden_.has(name)) continue;
        const HostValue want = golden_.get(name);
        hidden(ours, want.values.data(), want.shape[0], want.cols());
      }
      if (golden_.has(golden_.exact(group, "expert_layers_t0"))) {
        const HostValue want = golden_.get(golden_.exact(group, "expert_layers_t0"));
        for (int64_t layer = 0; layer < want.shape[0]; ++layer) {
          hidden(fmt::format("expert.layer.{}.0", layer), want.values.data() + layer * want.shape[1] * want.cols(),
                 want.shape[1], want.cols());
        }
      }
    }
    const HostValue v0 = golden_.get(golden_.at(group, "v_t0"));
    whole(group + " v of step 0", tap("v.0"), v0.values.data(), Quantity::kVelocity);
    if (engine_.options().precision == DType::kF32 && golden_.is_exact()) {
      const HostValue v = golden_.get(golden_.exact(group, "v_t"));
      for (int64_t step = 1; step < v.shape[0]; ++step) {
        whole(fmt::format("{} v of step {}", group, step), tap(fmt::format("v.{}", step)),
              v.values.data() + step * horizon * v.cols(), Quantity::kVelocity);
      }
    }
    actions(group);
  }

  void actions(const std::string& group) {
    const HostValue want = golden_.get(golden_.at(group, "actions"));
    whole(group + " actions", tap("actions"), want.values.data(), Quantity::kActions);
  }
  void served_actions(const std::string& group, const std::vector<float>& got) {
    const HostValue want = golden_.get(golden_.at(group, "actions"));
    whole(group + " actions as served", {want.shape, got}, want.values.data(), Quantity::kActions);
  }

 private:
  HostValue tap(const std::string& name) const { return read_value(engine_.plan(), name); }
  void add(const std::string& what, const Distance& distance, Quantity quantity) {
    table_.add(what, distance, bound_for(quantity, engine_.options().precision, engine_.config()));
  }
  void whole(const std::string& what, const HostValue& got, const float* want, Quantity quantity) {
    Distance distance;
    distance.add(got.values.data(), want, std::ssize(got.values));
    add(what, distance, quantity);
  }
  void layers(const std::string& ours, const HostValue& want, int64_t depth, const std::vector<int64_t>& rows) {
    for (int64_t layer = 0; layer < depth; ++layer) {
      const std::string name = ours + std::to_string(layer);
      add(name,
          compare_rows(tap(name), rows, 0, want.values.data() + layer * std::ssize(rows) * want.cols(), want.cols()),
          Quantity::kHidden);
    }
  }

  const Golden& golden_;
  Engine& engine_;
  ErrorTable& table_;
};

ErrorTable check_against_file(const CheckOptions& options, Session& session) {
  EngineOptions engine_options = session.engine->options();
  const Golden golden(options.against, engine_options);
  ErrorTable table;
  const ModelConfig& base = session.model.config;
  const int64_t tokens = golden.prefix_rows().back() + 1 - 3 * base.vision.tokens();
  if (base.vision.tokens() != 256 || base.head_dim != 256 || tokens < 1) {
    throw_bad_input("{}: these golden values are for the published sizes; the checkpoint has others.", options.against);
  }
  engine_options.schedule = golden.schedule();
  session.engine.reset();
  struct Case {
    const char* group;
    int64_t horizon, views;
  };
  for (const Case& one : {Case{"h10", 10, 3}, Case{"h10_cam2_masked", 10, 2}, Case{"h50", 50, 3}}) {
    ModelConfig config = base;
    config.horizon = one.horizon;
    config.max_token_len = std::max(config.max_token_len, tokens);
    Engine engine(*session.backend, config, session.model.weights, engine_options);
    const Workload workload(config, {.views = one.views, .prompt_tokens = tokens, .batch = 1});
    run_workload(engine, workload);
    GoldenCheck check(golden, engine, table);
    if (const auto actions =
            served_actions(*session.backend, config, session.model.weights, engine_options, workload)) {
      check.served_actions(one.group, *actions);
    }
    if (std::string(one.group) == "h10_cam2_masked") {
      check.actions(one.group);
      continue;
    }
    if (one.horizon == 10) {
      check.vision();
      check.prefix();
    }
    check.expert(one.group);
  }
  return table;
}

// The same input again and again must give the same bytes.
struct Repeats {
  int64_t calls = 0, first_different = -1;
  bool ok() const { return first_different < 0; }
};

int run_check(const CheckOptions& options) {
  const bool compares = options.against != "none";
  if (!compares && options.repeat_identical == 0) {
    throw_bad_use("--against none checks nothing by itself; add --repeat-identical N, or name a reference.");
  }
  Session session = open_session(options.model, {.preset = nullptr, .taps = compares});
  Repeats repeats{.calls = options.repeat_identical};
  if (options.repeat_identical > 0) {
    const Workload workload(session.model.config, options.workload);
    repeats.first_different = first_different_call(*session.engine, workload, options.repeat_identical);
  }
  ErrorTable table;
  if (compares) {
    table = options.against == "cpu-f32" ? check_against_cpu(options, session) : check_against_file(options, session);
  }
  const bool ok = (!compares || table.ok()) && repeats.ok();
  const MemoryUse memory = memory_use();
  if (options.json) {
    write_json({{"checkpoint", options.model.checkpoint},
                {"against", options.against},
                {"precision", options.model.precision_text()},
                {"rope_freq", options.model.rope},
                {"device", describe_device(*session.backend)},
                {"ok", ok},
                {"repeat", {{"calls", repeats.calls}, {"identical", repeats.ok()}}},
                {"rows", table.json()}},
               {});
    return ok ? kExitOk : kExitCheckFailed;
  }
  if (compares) {
    table.print(fmt::format("{} in {} on {}, against {}", options.model.checkpoint, options.model.precision_text(),
                            session.backend->name(), options.against));
    fmt::print("\n{} (peak memory {:.2f} GB)\n", table.ok() ? "all within bounds" : "OUT OF BOUNDS",
               static_cast<double>(memory.peak) * 1e-9);
  }
  if (!repeats.ok()) {
    fmt::print("NOT REPEATABLE: call {} of {} gave other bytes than the first\n", repeats.first_different + 1,
               repeats.calls);
  } else if (repeats.calls > 0) {
    fmt::print("{} calls with the same input gave the same bytes\n", repeats.calls);
  }
  return ok ? kExitOk : kExitCheckFailed;
}

}  // namespace

Command add_check(CLI::App& app) {
  auto options = std::make_shared<CheckOptions>();
  options->model.add_to(app);
  options->workload.add_to(app);
  app.add_option("--against", options->against, "cpu-f32, a file of golden values (safetensors), or none")
      ->capture_default_str();
  app.add_option("--repeat-identical", options->repeat_identical,
                 "call N times with the same input; the bytes must be the same")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--json", options->json, "machine-readable output");
  return [options] { return run_check(*options); };
}

}  // namespace tendon::cli
