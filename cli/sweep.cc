#include "sweep.h"

#include <algorithm>
#include <charconv>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "commands.h"
#include "floor.h"
#include "version.h"

namespace tendon::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSweepSchema = 2, kOldestReadSchema = 1;  // 1: `caches` stands once for the file
constexpr size_t kMostValues = 1000;

// Every value of every axis; an axis that was not swept has the one value of its option.
struct Axes {
  std::vector<int64_t> batch, views, prompt_tokens;
  std::vector<std::optional<int64_t>> horizon, steps;
  std::vector<std::string> precision, caches;
};

int64_t number(const std::string& text, const std::string& range) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    throw_bad_use("--sweep {}: '{}' is no number from 1", range, text);
  }
  return value;
}

// "1,2,8..10" → 1 2 8 9 10.
std::vector<int64_t> numbers(const std::string& list, const std::string& range) {
  std::vector<int64_t> values;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t comma = std::min(list.find(',', begin), list.size());
    const std::string part = list.substr(begin, comma - begin);
    const size_t dots = part.find("..");
    const int64_t first = number(part.substr(0, dots), range);
    const int64_t last = dots == std::string::npos ? first : number(part.substr(dots + 2), range);
    if (last < first || last - first >= static_cast<int64_t>(kMostValues)) {
      throw_bad_use("--sweep {}: {}..{} is no range of 1 to {} values", range, first, last, kMostValues);
    }
    for (int64_t value = first; value <= last; ++value) values.push_back(value);
    begin = comma + 1;
  }
  return values;
}

// "bf16,f32", each one of `known`.
std::vector<std::string> words(const std::string& list, const std::string& range, const std::string& axis,
                               const std::vector<std::string>& known) {
  std::vector<std::string> values;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t comma = std::min(list.find(',', begin), list.size());
    values.push_back(list.substr(begin, comma - begin));
    if (std::ranges::find(known, values.back()) == known.end()) {
      throw_bad_use("--sweep {}: '{}' is nothing that {} can be ({})", range, values.back(), axis,
                    fmt::join(known, ", "));
    }
    begin = comma + 1;
  }
  return values;
}

const char* caches_word(bool cold) { return cold ? "cold" : "warm"; }

Axes axes_of(const SweepOptions& options, const ModelOptions& model, const WorkloadOptions& workload,
             const MeasureOptions& measure) {
  Axes axes{.batch = {workload.batch},
            .views = {workload.views},
            .prompt_tokens = {workload.prompt_tokens},
            .horizon = {model.horizon},
            .steps = {model.steps},
            .precision = {model.precision},
            .caches = {caches_word(measure.cold)}};
  const auto within = [](const std::vector<int64_t>& values, int64_t most, const std::string& range) {
    for (const int64_t value : values) {
      if (value > most) throw_bad_use("--sweep {}: {} is more than {}", range, value, most);
    }
    return values;
  };
  for (const std::string& range : options.ranges) {
    const size_t equals = range.find('=');
    const std::string axis = range.substr(0, equals);
    const std::string list = equals == std::string::npos ? "" : range.substr(equals + 1);
    if (axis == "precision") {
      axes.precision = words(list, range, axis, {"bf16", "f32", "fp8", "int8"});
      continue;
    }
    if (axis == "caches") {
      axes.caches = words(list, range, axis, {"warm", "cold"});
      continue;
    }
    constexpr int64_t kAny = 4096;
    if (axis == "batch") {
      axes.batch = within(numbers(list, range), 64, range);
    } else if (axis == "views") {
      axes.views = within(numbers(list, range), 3, range);
    } else if (axis == "prompt-tokens") {
      axes.prompt_tokens = within(numbers(list, range), kAny, range);
    } else if (axis == "horizon" || axis == "steps") {
      auto& values = axis == "horizon" ? axes.horizon : axes.steps;
      values.clear();
      for (const int64_t value : within(numbers(list, range), kAny, range)) values.emplace_back(value);
    } else {
      throw_bad_use(
          "--sweep {}: there is no axis '{}' (batch, views, horizon, precision, prompt-tokens, steps, caches)", range,
          axis);
    }
  }
  return axes;
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json row_of(const Session& session, const Workload& workload, const WorkloadOptions& options,
            const std::string& precision, const std::string& caches, const Measured& m) {
  const Engine& engine = *session.engine;
  const Floor floor = floor_of(engine.plan(), session.backend->info().limits, engine.options().precision);
  const double p50 = m.wall.percentile(50);
  const auto interval = m.wall.median_interval();
  Json row = {{"precision", precision},
              {"horizon", engine.config().horizon},
              {"steps", engine.schedule().times.size()},
              {"batch", options.batch},
              {"views", options.views},
              {"prompt_tokens", workload.prompt_tokens()},
              {"caches", caches},
              {"prefix_rows", engine.bucket().prefix_rows},
              {"calls", m.wall.count()},
              {"p50_ms", p50},
              {"p50_low_ms", interval.first},
              {"p50_high_ms", interval.second},
              {"p90_ms", m.wall.percentile(90)},
              {"p99_ms", m.wall.percentile(99)},
              {"outliers", m.wall.outliers()},
              {"device_p50_ms", m.device ? Json(m.device->percentile(50)) : Json()},
              {"floor_ms", or_null(floor.ms)},
              {"samples_per_s", 1e3 / p50 * static_cast<double>(options.batch)},
              {"mean_w", or_null(m.energy.mean_w)},
              {"idle_w", or_null(m.energy.idle_w)},
              {"j_per_call", or_null(m.energy.j_per_call)},
              {"j_per_call_above_idle", or_null(m.energy.j_per_call_above_idle())},
              {"calls_per_j", m.energy.j_per_call ? Json(1 / *m.energy.j_per_call) : Json()},
              {"core_mhz", or_null(m.energy.core_mhz)},
              {"slowed_by", or_null(m.energy.slowed_by)}};
  for (const auto& [name, ms] : m.stage_ms) row[name + "_ms"] = ms;
  return row;
}

// What must agree for two rows to be compared. `caches`: of rows that do not say it themselves.
std::string key_of(const Json& row, const std::string& caches = "warm") {
  std::string key;
  for (const char* field : {"precision", "horizon", "steps", "batch", "views", "prompt_tokens"}) {
    key += std::string(field) + " " + row.at(field).dump() + " ";
  }
  return key + "caches " + row.value("caches", caches);
}

void print_header(const Session& session) {
  const DeviceInfo device = session.backend->info();
  fmt::print("{}: {} ({}); caches cold: emptied before each call\n", session.backend->name(), device.name,
             device.architecture);
  fmt::print("{:>5} {:>7} {:>5} {:>5} {:>5} {:>6} {:>6} {:>10} {:>19} {:>10} {:>9} {:>8} {:>8}\n", "prec", "horizon",
             "steps", "batch", "views", "prompt", "caches", "p50 ms", "95 % of it", "p99 ms", "samples/s", "limit %",
             "J/call");
}

void print_row(const Json& row) {
  const auto optional = [&](const char* field, double scale) {
    return row[field].is_null() ? std::string("-") : fmt::format("{:.2f}", row[field].get<double>() * scale);
  };
  const double p50 = row["p50_ms"];
  fmt::print("{:>5} {:>7} {:>5} {:>5} {:>5} {:>6} {:>6} {:>10.3f} {:>9.3f}–{:<9.3f} {:>10.3f} {:>9.2f} {:>8} {:>8}{}\n",
             row["precision"].get<std::string>(), row["horizon"].get<int64_t>(), row["steps"].get<int64_t>(),
             row["batch"].get<int64_t>(), row["views"].get<int64_t>(), row["prompt_tokens"].get<int64_t>(),
             row["caches"].get<std::string>(), p50, row["p50_low_ms"].get<double>(), row["p50_high_ms"].get<double>(),
             row["p99_ms"].get<double>(), row["samples_per_s"].get<double>(), optional("floor_ms", 100 / p50),
             optional("j_per_call", 1),
             row["slowed_by"].is_string() && !row["slowed_by"].get<std::string>().empty()
                 ? "  SLOWED BY " + row["slowed_by"].get<std::string>()
                 : "");
  std::fflush(stdout);
}

Json read_baseline(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw_bad_input("Cannot open the baseline '{}'. Check the path.", path);
  const Json json = Json::parse(file, nullptr, false);
  if (json.is_discarded() || !json.is_object() || json.value("kind", "") != "sweep" || !json.contains("rows")) {
    throw_bad_input("The baseline '{}' is no JSON that tendon bench --sweep wrote.", path);
  }
  if (const int schema = json.value("schema", 0); schema < kOldestReadSchema || schema > kSweepSchema) {
    throw_bad_input("The baseline '{}' has schema {}, this program writes {}: measure it again.", path, schema,
                    kSweepSchema);
  }
  return json;
}

// Adds the verdict to the rows; false when one became slower.
bool compare(Json& rows, const Json& baseline, const SweepOptions& options, bool print) {
  bool all_well = true;
  size_t compared = 0;
  for (Json& row : rows) {
    for (const Json& old : baseline["rows"]) {
      if (key_of(old, baseline.value("caches", "warm")) != key_of(row)) continue;
      const double before = old.at("p50_ms");
      const double ratio = row["p50_ms"].get<double>() / before;
      const bool apart = row["p50_low_ms"].get<double>() > old.at("p50_high_ms").get<double>();
      const bool slower = ratio > 1 + options.tolerance_percent / 100 && apart;
      row["baseline_p50_ms"] = before;
      row["of_baseline"] = ratio;
      row["verdict"] = slower ? "slower" : "pass";
      all_well = all_well && !slower;
      ++compared;
      if (print)
        fmt::print("{}: {}: {:.3f} of the baseline's {:.3f} ms\n", slower ? "SLOWER" : "pass", key_of(row), ratio,
                   before);
      break;
    }
  }
  if (compared == 0) throw_bad_input("The baseline '{}' has none of the rows measured here.", options.baseline);
  return all_well;
}

}  // namespace

int sweep(const SweepOptions& options, const ModelOptions& model, const WorkloadOptions& workload,
          const MeasureOptions& measure_options, const std::string& json) {
  const Axes axes = axes_of(options, model, workload, measure_options);
  model.require_codes_in(axes.precision);
  const Json baseline = options.baseline.empty() ? Json() : read_baseline(options.baseline);
  const bool print = json != "-";
  Json rows = Json::array();
  Json device;
  for (const std::string& precision : axes.precision) {
    for (const auto& horizon : axes.horizon) {
      for (const auto& steps : axes.steps) {
        ModelOptions one = model;
        one.set_precision(precision);
        one.horizon = horizon;
        one.steps = steps;
        const Session session = open_session(one);
        if (rows.empty()) {
          device = describe_device(*session.backend);
          if (print) print_header(session);
        }
        for (const int64_t batch : axes.batch) {
          for (const int64_t views : axes.views) {
            for (const int64_t tokens : axes.prompt_tokens) {
              const WorkloadOptions shape{.views = views, .prompt_tokens = tokens, .batch = batch};
              const Workload inputs(session.model.config, shape);
              for (const std::string& caches : axes.caches) {
                MeasureOptions how = measure_options;
                how.cold = caches == "cold";
                const Measured measured = measure(*session.engine, inputs, how);
                rows.push_back(row_of(session, inputs, shape, one.precision_text(), caches, measured));
                if (print) print_row(rows.back());
              }
            }
          }
        }
      }
    }
  }
  bool all_well = true;
  try {
    all_well = options.baseline.empty() || compare(rows, baseline, options, print);
  } catch (const nlohmann::json::exception& error) {
    throw_bad_input("The baseline '{}' is damaged: {}", options.baseline, error.what());
  }
  if (!json.empty()) {
    write_json({{"kind", "sweep"},
                {"schema", kSweepSchema},
                {"version", TENDON_VERSION},
                {"commit", TENDON_COMMIT},
                {"device", device},
                {"checkpoint", model.checkpoint},
                {"tolerance_percent", options.tolerance_percent},
                {"rows", rows}},
               json);
  }
  return all_well ? kExitOk : kExitCheckFailed;
}

}  // namespace tendon::cli
