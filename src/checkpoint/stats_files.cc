#include "checkpoint/stats_files.h"

#include <algorithm>
#include <cmath>
#include <system_error>
#include <utility>

#include <fmt/ranges.h>

#include "base/check.h"
#include "checkpoint/json_text.h"
#include "checkpoint/safetensors.h"

namespace tendon {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kOverride = "Give a file with --norm-stats FILE, or an id with --asset-id ID.";
constexpr const char* kPreprocessor = "policy_preprocessor.json";
constexpr const char* kPostprocessor = "policy_postprocessor.json";
constexpr int kMaxAssetDepth = 6;
constexpr size_t kMaxAssetFiles = 10'000;

std::string join_ids(const std::vector<std::string>& ids) {
  return ids.empty() ? "none" : fmt::format("{}", fmt::join(ids, ", "));
}

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

NormStats read_openpi(const fs::path& path, NormMode mode, std::string_view chosen_by, const LogSink& log) {
  NormStats stats = parse_openpi_norm_stats(read_text_file(path), path.string(), mode);
  log_info(log, "normalisation statistics: {} ({}), {}", path.string(), chosen_by, norm_mode_name(mode));
  return stats;
}

// openpi's converter looks for assets one level above the folder that people point it at, so they may lie there.
std::string parent_hint(const fs::path& directory) {
  fs::path parent = fs::absolute(directory).lexically_normal().parent_path();
  if (!fs::absolute(directory).has_filename()) parent = parent.parent_path();  // "dir/" is "dir" plus an empty name
  const std::vector<std::string> ids = list_asset_ids(parent);
  if (ids.empty()) return {};
  return fmt::format(" The parent directory has some: {} under {}.", join_ids(ids), (parent / "assets").string());
}

std::optional<std::string> text_field(const Json& object, const char* name, const std::string& where) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return {};
  if (!found->is_string()) throw_bad_input("{}: '{}' is {}, expected a string", where, name, json_type(*found));
  return found->get<std::string>();
}

// Steps that turn relative actions into absolute ones; tendon has no such step for LeRobot folders.
void refuse_relative_actions(const Json& step, const std::string& name, const std::string& where) {
  if (name.find("relative_actions") == std::string::npos && name.find("absolute_actions") == std::string::npos) return;
  const auto config = step.find("config");
  const auto enabled = config != step.end() && config->is_object() ? config->find("enabled") : step.end();
  const bool off = config != step.end() && config->is_object() && enabled != config->end() && enabled->is_boolean() &&
                   !enabled->get<bool>();
  if (!off) {
    throw_bad_input(
        "{}: the step '{}' is enabled, and tendon does not support relative actions of LeRobot; use a "
        "checkpoint trained without it",
        where, shorten(name, 60));
  }
}

void read_step_config(const Json& step, const std::string& where, NormalizerStep& result) {
  const auto config = step.find("config");
  if (config == step.end() || !config->is_object()) throw_bad_input("{}: the step has no object 'config'", where);
  if (const auto eps = config->find("eps"); eps != config->end() && !eps->is_null()) {
    if (!eps->is_number() || !(eps->get<double>() > 0) || !std::isfinite(eps->get<double>())) {
      throw_bad_input("{}: config.eps is {}, expected a positive number", where, json_type(*eps));
    }
    result.eps = eps->get<double>();
  }
  const auto norm_map = config->find("norm_map");
  if (norm_map == config->end() || !norm_map->is_object()) {
    throw_bad_input("{}: the step has no 'norm_map' that says how states and actions are normalised", where);
  }
  for (const auto& [feature, mode] : norm_map->items()) {
    if (!mode.is_string()) {
      throw_bad_input("{}: norm_map.{} is {}, expected a string", where, shorten(feature, 60), json_type(mode));
    }
    result.norm_map[feature] = mode.get<std::string>();
  }
  const auto keys = config->find("normalize_observation_keys");
  if (keys != config->end() && keys->is_array() &&
      std::find(keys->begin(), keys->end(), "observation.state") == keys->end()) {
    result.norm_map["STATE"] = "IDENTITY";
  }
}

NormMode mode_of(const NormalizerStep& step, const char* feature, const std::string& where) {
  const auto found = step.norm_map.find(feature);
  if (found == step.norm_map.end()) throw_bad_input("{}: norm_map has no entry {}", where, feature);
  const std::optional<NormMode> mode = parse_norm_mode(found->second);
  if (!mode) {
    throw_bad_input("{}: norm_map.{} is {}, which tendon does not support (MEAN_STD, QUANTILES and IDENTITY are)",
                    where, feature, shorten(found->second, 60));
  }
  return *mode;
}

// One vector of a state file, empty when absent.
std::vector<double> read_vector(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  if (entry == nullptr) return {};
  if (entry->shape.rank() != 1 || entry->shape[0] == 0) {
    throw_bad_input("{}: tensor '{}' has shape {}, expected one non-empty vector", file.description(), name,
                    to_string(entry->shape));
  }
  return to_doubles(tensor_of(*entry));
}

// The normalising step of a processor file, and the statistics of one feature ("observation.state", "action").
struct LerobotHalf {
  NormalizerStep step;
  NormEntry entry;
  std::string where;
};

LerobotHalf read_half(const fs::path& directory, const char* processor, const char* registry_name, const char* type,
                      const std::string& feature) {
  const fs::path path = directory / processor;
  if (!is_there(path)) {
    throw_bad_input("{}: no such file; a LeRobot folder holds its statistics through {} and {}. {}", path.string(),
                    kPreprocessor, kPostprocessor, kOverride);
  }
  LerobotHalf half;
  half.where = path.string();
  half.step = parse_normalizer_step(read_text_file(path), half.where, registry_name);
  const std::string where = fmt::format("{}: step '{}'", half.where, registry_name);
  if (const auto visual = half.step.norm_map.find("VISUAL");
      visual != half.step.norm_map.end() && visual->second != "IDENTITY") {
    throw_bad_input("{}: norm_map.VISUAL is {}; tendon supports IDENTITY only", where, shorten(visual->second, 60));
  }
  half.entry.mode = mode_of(half.step, type, where);
  if (half.entry.mode == NormMode::kIdentity) return half;
  if (half.step.state_file.empty()) throw_bad_input("{}: no 'state_file' with the statistics. {}", where, kOverride);
  if (!is_there(directory / half.step.state_file)) {
    throw_bad_input("{}: its state_file {} is missing; download the rest of the checkpoint", where,
                    (directory / half.step.state_file).string());
  }
  const SafetensorsFile file = SafetensorsFile::open(directory / half.step.state_file);
  half.entry.mean = read_vector(file, feature + ".mean");
  half.entry.std = read_vector(file, feature + ".std");
  half.entry.q01 = read_vector(file, feature + ".q01");
  half.entry.q99 = read_vector(file, feature + ".q99");
  check_norm_entry(half.entry, file.description(), feature);
  half.where = file.description();
  return half;
}

}  // namespace

std::vector<std::string> list_asset_ids(const fs::path& directory) {
  const fs::path assets = directory / "assets";
  std::vector<std::string> ids;
  std::error_code error;
  const auto options = fs::directory_options::follow_directory_symlink | fs::directory_options::skip_permission_denied;
  size_t visited = 0;
  for (fs::recursive_directory_iterator it(assets, options, error), end;
       !error && it != end && visited < kMaxAssetFiles; it.increment(error), ++visited) {
    if (it.depth() >= kMaxAssetDepth) it.disable_recursion_pending();
    if (it->path().filename() != "norm_stats.json") continue;
    ids.push_back(it->path().parent_path().lexically_relative(assets).generic_string());
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

NormStats load_openpi_norm_stats(const fs::path& directory, NormMode mode, const StatsOptions& options,
                                 const LogSink& log) {
  if (options.file) return read_openpi(*options.file, mode, "--norm-stats", log);
  const std::vector<std::string> ids = list_asset_ids(directory);
  const auto path_of = [&](const std::string& id) { return directory / "assets" / id / "norm_stats.json"; };
  const auto has = [&](const std::string& id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); };
  if (options.asset_id) {
    std::string id = *options.asset_id;
    while (id.ends_with('/')) id.pop_back();
    if (!has(id)) {
      throw_bad_input("{}: no normalisation statistics for the asset id '{}'. Ids found: {}. {}{}",
                      path_of(id).string(), *options.asset_id, join_ids(ids), kOverride, parent_hint(directory));
    }
    return read_openpi(path_of(id), mode, "--asset-id", log);
  }
  if (ids.empty()) {
    throw_bad_input("{}: no normalisation statistics. Ids found: none. {}{}",
                    path_of(options.preset_asset_id.value_or("<asset id>")).string(), kOverride,
                    parent_hint(directory));
  }
  if (ids.size() == 1) return read_openpi(path_of(ids.front()), mode, "the only one there", log);
  if (options.preset_asset_id && has(*options.preset_asset_id)) {
    return read_openpi(path_of(*options.preset_asset_id), mode, "the preset's", log);
  }
  throw_bad_input("{}: normalisation statistics of several robots and none chosen. Ids found: {}. {}",
                  (directory / "assets").string(), join_ids(ids), kOverride);
}

NormalizerStep parse_normalizer_step(std::string_view text, const std::string& where, std::string_view registry_name) {
  const Json json = parse_json(text, where);
  const auto steps = json.is_object() ? json.find("steps") : json.end();
  if (steps == json.end() || !steps->is_array()) {
    throw_bad_input("{}: no list 'steps'; is this a processor file of LeRobot?", where);
  }
  std::optional<NormalizerStep> result;
  for (const Json& step : *steps) {
    if (!step.is_object()) throw_bad_input("{}: a step is {}, expected an object", where, json_type(step));
    const std::string name = text_field(step, "registry_name", where).value_or("");
    refuse_relative_actions(step, name, where);
    if (name != registry_name) continue;
    if (result) throw_bad_input("{}: several steps are called '{}'", where, registry_name);
    const std::string step_where = fmt::format("{}: step '{}'", where, registry_name);
    result.emplace();
    result->state_file = text_field(step, "state_file", step_where).value_or("");
    if (result->state_file.find('/') != std::string::npos || result->state_file.find('\0') != std::string::npos) {
      throw_bad_input("{}: state_file '{}' is not the name of a file in the same directory", step_where,
                      shorten(result->state_file));
    }
    read_step_config(step, step_where, *result);
  }
  if (!result) throw_bad_input("{}: no step is called '{}'; there are {} steps", where, registry_name, steps->size());
  return *result;
}

NormStats load_lerobot_norm_stats(const fs::path& directory, const LogSink& log) {
  LerobotHalf state = read_half(directory, kPreprocessor, "normalizer_processor", "STATE", "observation.state");
  LerobotHalf actions = read_half(directory, kPostprocessor, "unnormalizer_processor", "ACTION", "action");
  if (state.step.eps != actions.step.eps) {
    throw_bad_input("{}: eps {} in {} and {} in {}; they must be equal", directory.string(), state.step.eps,
                    kPreprocessor, actions.step.eps, kPostprocessor);
  }
  NormStats stats;
  stats.convention = NormConvention::kLerobot;
  stats.eps = state.step.eps;
  stats.where = state.where == actions.where ? state.where : state.where + ", " + actions.where;
  stats.state = std::move(state.entry);
  stats.actions = std::move(actions.entry);
  log_info(log, "normalisation statistics: {}, state {}, actions {}", stats.where, norm_mode_name(stats.state.mode),
           norm_mode_name(stats.actions.mode));
  return stats;
}

NormStats norm_stats_from_buffers(const std::map<std::string, std::vector<double>>& buffers,
                                  const CheckpointConfig& config, const std::string& where) {
  const auto read = [&](const std::string& prefix, const char* type) {
    NormEntry entry;
    const auto mode = config.norm_modes.find(type);
    entry.mode = mode == config.norm_modes.end() ? NormMode::kMeanStd : mode->second;
    const auto get = [&](const char* statistic) {
      const auto found = buffers.find(prefix + statistic);
      return found == buffers.end() ? std::vector<double>() : found->second;
    };
    entry.mean = get("mean");
    entry.std = get("std");
    entry.q01 = get("q01");
    entry.q99 = get("q99");
    if (entry.mode != NormMode::kIdentity) check_norm_entry(entry, where, prefix.substr(0, prefix.size() - 1));
    return entry;
  };
  NormStats stats;
  stats.convention = NormConvention::kLerobot;
  stats.eps = 1e-8;
  stats.where = where;
  stats.state = read("normalize_inputs.buffer_observation_state.", "STATE");
  stats.actions = read("unnormalize_outputs.buffer_action.", "ACTION");
  return stats;
}

NormStats load_norm_stats(const Checkpoint& checkpoint, Variant variant, const StatsOptions& options,
                          const LogSink& log) {
  const fs::path& directory = checkpoint.directory();
  const NormMode mode = variant == Variant::kPi0 ? NormMode::kMeanStd : NormMode::kQuantile;
  if (directory.empty() && !options.file && (options.asset_id || checkpoint.stats_buffers().empty())) {
    throw_bad_input("{}: no normalisation statistics: this checkpoint has no directory. {}", checkpoint.description(),
                    kOverride);
  }
  const bool on_disk = !directory.empty();
  const bool has_processors = on_disk && (is_there(directory / kPreprocessor) || is_there(directory / kPostprocessor));
  const bool has_buffers = !checkpoint.stats_buffers().empty();
  const bool lerobot = checkpoint.config().kind == ConfigKind::kLerobot;
  const bool has_assets = on_disk && !list_asset_ids(directory).empty();
  if (options.file || options.asset_id || (has_assets && !(lerobot && (has_processors || has_buffers)))) {
    return load_openpi_norm_stats(directory, mode, options, log);
  }
  if (has_processors) return load_lerobot_norm_stats(directory, log);
  if (has_buffers) {
    NormStats stats =
        norm_stats_from_buffers(checkpoint.stats_buffers(), checkpoint.config(), checkpoint.description());
    log_info(log, "normalisation statistics: among the weights of {}, state {}, actions {}", checkpoint.description(),
             norm_mode_name(stats.state.mode), norm_mode_name(stats.actions.mode));
    return stats;
  }
  if (lerobot) {
    throw_bad_input("{}: no normalisation statistics: neither {} nor {} is there. {}", directory.string(),
                    kPreprocessor, (directory / "assets").string(), kOverride);
  }
  return load_openpi_norm_stats(directory, mode, options, log);
}

}  // namespace tendon
