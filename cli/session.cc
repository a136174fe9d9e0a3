#include "session.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include <fmt/ranges.h>

#include "base/check.h"
#include "model/weights/synth.h"
#include "ops/compose.h"

namespace tendon::cli {

namespace {

// "all", or names of fused operations.
std::vector<std::string> expanded_operations(const std::vector<std::string>& given) {
  const std::vector<std::string_view> known = fused_operations();
  std::vector<std::string> names;
  for (const std::string& name : given) {
    if (name == "all") return {known.begin(), known.end()};
    if (std::ranges::find(known, name) == known.end())
      throw_bad_use("--expand {}: there is no fused operation of this name. There are: {}; all.", name,
                    fmt::join(known, ", "));
    names.push_back(name);
  }
  return names;
}

const std::string kRowScales = "rows";

bool has_codes(const std::string& precision) { return is_scaled(parse_precision(precision).value()); }

}  // namespace

void ModelOptions::add_to(CLI::App& app, bool checkpoint_required) {
  app.add_option(
         "--checkpoint", checkpoint,
         "directory, .safetensors file, or synthetic:pi0 | synthetic:pi05 | synthetic:pi0-tiny | synthetic:pi05-tiny")
      ->required(checkpoint_required);
  app.add_option("--backend", backend, "cpu (default: the best present)");
  app.add_option("--variant", variant, "pi0 | pi05; must agree with the weights")
      ->check(CLI::IsMember({"pi0", "pi05"}));
  app.add_option("--precision", precision,
                 "bf16 | f32 | fp8 | int8 (the last two: 8-bit operands in the products of --codes, all else as bf16)")
      ->check(CLI::IsMember({"bf16", "f32", "fp8", "int8"}))
      ->capture_default_str();
  app.add_option(
         "--codes", codes,
         "which products have 8-bit operands with fp8 and int8, one or several: prefix (default), vision-normed "
         "(the tower's q, k, v, fc1 and the projector), vision (all of the tower's), expert; or expert-weights: the "
         "expert's weights alone, which the denoise loop as one kernel streams as codes")
      ->check(CLI::IsMember({"vision", "vision-normed", "prefix", "expert", "expert-weights"}));
  app.add_option("--scales", scales,
                 "of 8-bit operands behind attention and GELU: rows (as they come) | static (from the file that tendon "
                 "tune --calibrate left beside the checkpoint) | such a file elsewhere")
      ->capture_default_str();
  app.add_option("--rope-freq", rope, "exact | bf16: RoPE frequencies as trained")
      ->check(CLI::IsMember({"exact", "bf16"}))
      ->capture_default_str();
  app.add_option("--time-rule", time_rule,
                 "openpi | lerobot: rounding of the step times (default: as the checkpoint's origin has it)")
      ->check(CLI::IsMember({"openpi", "lerobot"}));
  app.add_option("--horizon", horizon, "action rows H (default: the preset's or the checkpoint's)");
  app.add_option("--max-tokens", max_tokens, "prompt budget (default: the preset's or the checkpoint's)");
  app.add_option("--steps", steps, "denoise steps N (default: the checkpoint's, else 10)");
  app.add_option("--threads", threads, "CPU threads (default: all cores of this process)");
  app.add_option("--device", device, "which card, from 0 (default: the first)");
  app.add_flag("--no-graph", no_graph, "cards: launch kernels one by one instead of as one graph");
  app.add_option("--fold-off", folds_off, "switch a named fold off (tendon info lists them)");
  app.add_option("--kernels", kernels, "best | portable: on a card, only kernels of our own that run on any card")
      ->check(CLI::IsMember({"best", "portable"}))
      ->capture_default_str();
  app.add_option("--gemm-table", gemm_table,
                 "on a card: a table of `tendon tune` in place of the built-in one; none: the library's own choice");
  app.add_option("--without", without,
                 "on a card: leave out kernels whose name (tendon info) holds this word, one or several words");
  app.add_option("--expand", expand, "fused operations (docs/ops.md) to run as their parts, one or several; all");
}

std::string ModelOptions::precision_text() const {
  if (!has_codes(precision)) return precision;
  std::vector<std::string> words;
  if (!codes.empty()) words.push_back(fmt::format("{}", fmt::join(codes, "+")));
  if (scales != kRowScales) words.emplace_back("static scales");
  return words.empty() ? precision : fmt::format("{} ({})", precision, fmt::join(words, ", "));
}

void ModelOptions::set_precision(const std::string& word) {
  precision = word;
  if (has_codes(word)) return;
  codes.clear();
  scales = kRowScales;
}

void ModelOptions::require_codes_in(const std::vector<std::string>& precisions) const {
  if ((codes.empty() && scales == kRowScales) || std::ranges::any_of(precisions, has_codes)) return;
  throw_bad_use("{}: {} has no codes; add --precision int8 or fp8",
                codes.empty() ? "--scales " + scales : fmt::format("--codes {}", fmt::join(codes, " ")),
                fmt::join(precisions, ", "));
}

std::filesystem::path ModelOptions::scales_file() const {
  if (scales != "static") return scales;
  if (parse_synthetic(checkpoint))
    throw_bad_use("--scales static: {} has no place for a file. Name the one that tendon tune --calibrate --out wrote.",
                  checkpoint);
  return static_scales_file(checkpoint);
}

EngineOptions ModelOptions::engine_options(const ModelConfig& config, const CheckpointConfig& stated) const {
  EngineOptions options;
  options.precision = parse_precision(precision).value();
  require_codes_in({precision});
  if (!codes.empty()) {
    const auto has = [&](std::string_view name) { return std::ranges::find(codes, name) != codes.end(); };
    options.coded = {.vision_normed = has("vision") || has("vision-normed"),
                     .vision_rest = has("vision"),
                     .prefix = has("prefix"),
                     .expert = has("expert"),
                     .expert_weights = has("expert-weights")};
    if (options.coded.expert && options.coded.expert_weights)
      throw_bad_use("--codes: expert has its weights as codes anyway; leave out expert or expert-weights");
  }
  if (scales != kRowScales)
    options.operand_maxima = std::make_shared<const OperandMaxima>(read_maxima(scales_file(), config));
  options.rope = rope == "bf16" ? RopeFrequencies::kBf16 : RopeFrequencies::kExact;
  const bool lerobot = time_rule.empty() ? stated.kind == ConfigKind::kLerobot : time_rule == "lerobot";
  options.time_rule = lerobot ? TimeRule::kLerobot : TimeRule::kOpenpi;
  options.steps = steps.value_or(stated.num_steps.value_or(10));
  for (const std::string& name : folds_off) switch_off(options.folds, name);
  options.plan.expand = expanded_operations(expand);
  return options;
}

LoadOptions ModelOptions::load_options(const Preset* preset) const {
  LoadOptions options;
  if (!variant.empty()) options.variant = variant == "pi0" ? Variant::kPi0 : Variant::kPi05;
  options.horizon.option = horizon;
  options.max_token_len.option = max_tokens;
  if (preset != nullptr) {
    options.horizon.preset = preset->horizon;
    options.max_token_len.preset = preset->max_token_len;
  }
  return options;
}

BackendOptions ModelOptions::backend_options() const {
  BackendOptions options;
  options.threads = threads;
  options.device = device;
  options.graph = !no_graph;
  options.log = stderr_log();
  options.portable_kernels = kernels == "portable";
  options.gemm_table = gemm_table;
  options.without = without;
  return options;
}

Session open_session(const ModelOptions& options, const SessionOptions& session_options) {
  Session session;
  const LogSink log = stderr_log();
  const double begin = now_s();
  session.backend = make_backend(options.backend, options.backend_options());
  const DeviceInfo device = session.backend->info();
  log_info(log, "{} backend: {} ({}), {} threads", session.backend->name(), device.name, device.architecture,
           device.threads_or_sms);
  session.free_bytes_at_open = device.free_bytes;
  const double start = now_s();
  session.open_s = start - begin;
  LoadOptions load = options.load_options(session_options.preset);
  if (!session.backend->uses_host_memory()) load.making = Making::kWhenAsked;
  session.model = load_model(options.checkpoint, load, log, stderr_progress("making weights"));
  const double loaded = now_s();
  const Checkpoint* const checkpoint = session.model.checkpoint;
  EngineOptions engine_options =
      options.engine_options(session.model.config, checkpoint == nullptr ? CheckpointConfig{} : checkpoint->config());
  engine_options.taps = session_options.taps;
  engine_options.operand_taps = session_options.operand_taps;
  engine_options.prepared = session_options.prepared;
  if (session_options.chunking) engine_options.chunking = session_options.chunking(engine_options.steps);
  if (!session.backend->uses_host_memory()) engine_options.frame_bytes = session_options.frame_bytes;
  if (session_options.serving_lengths)
    engine_options.prompt_lengths = serving_prompt_lengths(session.model.config.max_token_len);
  session.engine =
      std::make_unique<Engine>(*session.backend, session.model.config, session.model.weights, engine_options, log);
  session.load_s = loaded - start;
  session.ready_s = now_s() - loaded;
  log_info(log, "{} loaded in {:.2f} s, ready {:.2f} s later; compute {}, horizon {}, {} steps",
           variant_name(session.model.config.variant), session.load_s, session.ready_s, options.precision_text(),
           session.model.config.horizon, session.engine->schedule().times.size());
  return session;
}

ModelConfig load_config(const ModelOptions& options) {
  const LoadOptions load = options.load_options();
  if (const std::optional<ModelConfig> synthetic = parse_synthetic(options.checkpoint)) {
    ModelConfig config = *synthetic;
    if (load.horizon.option) config.horizon = *load.horizon.option;
    if (load.max_token_len.option) config.max_token_len = *load.max_token_len.option;
    return config;
  }
  return load_model(options.checkpoint, load, stderr_log()).config;
}

size_t Session::device_bytes_used() const {
  if (backend->uses_host_memory()) return 0;
  const size_t free = backend->info().free_bytes;
  return free_bytes_at_open - std::min(free, free_bytes_at_open);
}

LogSink stderr_log() {
  return [](LogLevel level, const std::string& text) {
    std::fprintf(stderr, "[tendon] %s%s\n", level == LogLevel::kWarning ? "warning: " : "", text.c_str());
  };
}

Progress stderr_progress(const std::string& what) {
  if (isatty(STDERR_FILENO) == 0) return {};
  return [what, last = -1](double done, double total) mutable {
    const int percent = static_cast<int>(100.0 * done / total);
    if (percent == last) return;
    last = percent;
    std::fprintf(stderr, "\r[tendon] %s: %3d %%%s", what.c_str(), percent, percent == 100 ? "\n" : "");
  };
}

MemoryUse memory_use() {
  MemoryUse use;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    const auto field = [&](const char* key) {
      return line.starts_with(key) ? std::stoull(line.substr(std::string(key).size())) * 1024 : 0;
    };
    if (const size_t bytes = field("VmRSS:")) use.resident = bytes;
    if (const size_t bytes = field("VmHWM:")) use.peak = bytes;
  }
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("MemAvailable:")) use.available = std::stoull(line.substr(13)) * 1024;
  }
  return use;
}

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void write_json(const nlohmann::ordered_json& json, const std::string& file) {
  const std::string text = json.dump(2) + "\n";
  if (file.empty() || file == "-") {
    std::fputs(text.c_str(), stdout);
    return;
  }
  std::ofstream out(file);
  out << text;
  if (!out.flush()) throw_bad_input("cannot write '{}'. Check the directory and its rights.", file);
}

nlohmann::ordered_json describe_model(const ModelConfig& c) {
  return {{"variant", variant_name(c.variant)},
          {"vision",
           {{"image_size", c.vision.image_size},
            {"width", c.vision.width},
            {"depth", c.vision.depth},
            {"heads", c.vision.heads},
            {"mlp", c.vision.mlp}}},
          {"prefix", {{"width", c.prefix.width}, {"depth", c.depth}, {"mlp", c.prefix.mlp}}},
          {"expert", {{"width", c.expert.width}, {"depth", c.depth}, {"mlp", c.expert.mlp}}},
          {"heads", c.heads},
          {"kv_heads", c.kv_heads},
          {"head_dim", c.head_dim},
          {"vocab", c.vocab},
          {"action_dim", c.action_dim},
          {"horizon", c.horizon},
          {"max_token_len", c.max_token_len}};
}

nlohmann::ordered_json describe_device(const Backend& backend) {
  const DeviceInfo info = backend.info();
  return {{"backend", backend.name()},
          {"name", info.name},
          {"architecture", info.architecture},
          {"threads_or_sms", info.threads_or_sms},
          {"memory_bytes", info.memory_bytes},
          {"driver", info.driver},
          {"runtime", info.runtime},
          {"library", info.library},
          {"gemm_table", info.gemm_table},
          {"limits",
           {{"bf16_tflop_per_s", info.limits.bf16_flops_per_s * 1e-12},
            {"read_gb_per_s", info.limits.read_bytes_per_s * 1e-9}}}};
}

}  // namespace tendon::cli
