// What most subcommands share: the options that choose a model and a backend, and opening both.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "backend/registry.h"
#include "engine/engine.h"
#include "engine/load.h"
#include "policy/preset/presets.h"

namespace tendon::cli {

struct ModelOptions {
  std::string checkpoint;
  std::string backend;
  std::string variant;
  std::string precision = "bf16";
  std::vector<std::string> codes;  // empty: the prefix
  std::string scales = "rows";     // or "static", or a file of static scales
  std::string rope = "exact";
  std::string time_rule;
  std::optional<int64_t> horizon, max_tokens;
  std::optional<int64_t> steps;
  int threads = 0;
  int device = 0;
  bool no_graph = false;
  std::vector<std::string> folds_off;
  std::string kernels = "best";
  std::string gemm_table;
  std::vector<std::string> without, expand;

  void add_to(CLI::App& app, bool checkpoint_required = true);
  // The precision, and which products run on codes where it is not the default: "int8", "int8 (vision+prefix)".
  std::string precision_text() const;
  // Another precision, as a rung of the ladder or a row of a sweep has it: without codes where it has none.
  void set_precision(const std::string& word);
  // Throws when the user names products for codes, or static scales, and none of these precisions has codes.
  void require_codes_in(const std::vector<std::string>& precisions) const;
  // What the user leaves open is taken from the checkpoint's config. Reads the file of static scales.
  EngineOptions engine_options(const ModelConfig& config, const CheckpointConfig& stated = {}) const;
  // Where --scales has the static scales, or would.
  std::filesystem::path scales_file() const;
  LoadOptions load_options(const Preset* preset = nullptr) const;
  BackendOptions backend_options() const;
};

// A loaded model on a backend, with what loading took.
struct Session {
  std::unique_ptr<Backend> backend;
  LoadedModel model;
  std::unique_ptr<Engine> engine;
  double open_s = 0;              // backend: driver, card, libraries
  double load_s = 0;              // checkpoint opened or synthetic weights made
  double ready_s = 0;             // tables, weights on the device
  size_t free_bytes_at_open = 0;  // of the device, before anything was put there

  // What became less on the device since then: weights, plans, and the runtime's own. 0 where the host computes.
  size_t device_bytes_used() const;
};

struct SessionOptions {
  const Preset* preset = nullptr;
  bool taps = false, operand_taps = false;
  std::vector<PreparedBatch> prepared = {};  // plans made before the first call
  bool serving_lengths = false;              // prompts padded to serving_prompt_lengths
  std::function<std::optional<Chunking>(int64_t steps)> chunking = {};
  size_t frame_bytes = 0;  // EngineOptions::frame_bytes, on cards
};
Session open_session(const ModelOptions& options, const SessionOptions& session_options = {});

// Of the model alone: synthetic weights are not made.
ModelConfig load_config(const ModelOptions& options);

// "[tendon] …" lines on standard error; silent when quiet.
LogSink stderr_log();
// One rewritten line on a terminal, nothing elsewhere.
Progress stderr_progress(const std::string& what);

// Resident set of this process, its peak, and memory the system could give, in bytes.
struct MemoryUse {
  size_t resident = 0, peak = 0, available = 0;
};
MemoryUse memory_use();

double now_s();
// Prints JSON to standard output, or to a file when the name is neither empty nor "-".
void write_json(const nlohmann::ordered_json& json, const std::string& file);

nlohmann::ordered_json describe_model(const ModelConfig& config);
nlohmann::ordered_json describe_device(const Backend& backend);

}  // namespace tendon::cli
