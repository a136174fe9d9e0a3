#include "checkpoint/norm_stats.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "checkpoint/json_text.h"

namespace tendon {
namespace {

using Json = nlohmann::ordered_json;

// The four statistics by name, in the order of messages.
template <class Entry>
auto statistics(Entry& entry) {
  using Vector = std::remove_reference_t<decltype((entry.mean))>;
  return std::array<std::pair<const char*, Vector*>, 4>{
      {{"mean", &entry.mean}, {"std", &entry.std}, {"q01", &entry.q01}, {"q99", &entry.q99}}};
}

// A list of finite numbers; `what` is "state.mean" and so on.
std::vector<double> read_numbers(const Json& value, const std::string& where, const std::string& what) {
  if (!value.is_array()) throw_bad_input("{}: {} is {}, expected a list of numbers", where, what, json_type(value));
  std::vector<double> numbers;
  numbers.reserve(value.size());
  for (const Json& item : value) {
    const size_t index = numbers.size();
    if (item.is_string()) {
      throw_bad_input("{}: {}[{}] is {}, expected a finite number; compute the statistics again", where, what, index,
                      shorten(item.get_ref<const std::string&>(), 40));
    }
    if (!item.is_number()) {
      throw_bad_input("{}: {}[{}] is {}, expected a number: every statistic is one flat list", where, what, index,
                      json_type(item));
    }
    numbers.push_back(item.get<double>());
  }
  if (numbers.empty()) throw_bad_input("{}: {} is an empty list", where, what);
  return numbers;
}

NormEntry read_entry(const Json& stats, const char* name, NormMode mode, const std::string& where) {
  const auto found = stats.find(name);
  if (found == stats.end() || !found->is_object()) {
    throw_bad_input(
        "{}: norm_stats has no entry '{}' with mean, std, q01 and q99; is this a norm_stats.json of openpi?", where,
        name);
  }
  NormEntry entry;
  entry.mode = mode;
  for (const auto& [statistic, values] : statistics(entry)) {
    const auto field = found->find(statistic);
    if (field == found->end() || field->is_null()) continue;
    *values = read_numbers(*field, where, fmt::format("{}.{}", name, statistic));
  }
  check_norm_entry(entry, where, name);
  return entry;
}

void require_statistic(const std::vector<double>& values, std::string_view statistic, const NormEntry& entry,
                       const std::string& where, std::string_view entry_name) {
  if (!values.empty()) return;
  throw_bad_input(
      "{}: {}.{} is missing, and this model normalises by {}; it is not derived from the other statistics. "
      "Compute the statistics again, or give another file with --norm-stats.",
      where, entry_name, statistic, norm_mode_name(entry.mode));
}

// What an action or state index beyond the statistics gets in mean/std mode.
constexpr double kRestMean = 0.0;
constexpr double kRestStd = 1.0;

std::vector<double> each_row(const NormStats& stats, std::span<const double> rows, int64_t width,
                             decltype(normalize)* apply) {
  TENDON_CHECK(width > 0 && static_cast<int64_t>(rows.size()) % width == 0, "{} values in rows of {}", rows.size(),
               width);
  require_action_width(stats, width);
  std::vector<double> out(rows.size());
  const size_t step = static_cast<size_t>(width);
  for (size_t begin = 0; begin < rows.size(); begin += step) {
    apply(stats.actions, stats.convention, stats.eps, rows.subspan(begin, step), std::span(out).subspan(begin, step));
  }
  return out;
}

}  // namespace

int64_t NormEntry::width() const {
  switch (mode) {
    case NormMode::kMeanStd:
      return static_cast<int64_t>(mean.size());
    case NormMode::kQuantile:
      return static_cast<int64_t>(q01.size());
    case NormMode::kIdentity:
      break;
  }
  return 0;
}

NormStats parse_openpi_norm_stats(std::string_view text, const std::string& where, NormMode mode) {
  const Json json = parse_json(text, where);
  const auto stats = json.is_object() ? json.find("norm_stats") : json.end();
  if (stats == json.end() || !stats->is_object()) {
    throw_bad_input("{}: no object 'norm_stats'; is this a norm_stats.json of openpi?", where);
  }
  NormStats result;
  result.convention = NormConvention::kOpenpi;
  result.eps = 1e-6;
  result.where = where;
  result.state = read_entry(*stats, "state", mode, where);
  result.actions = read_entry(*stats, "actions", mode, where);
  return result;
}

void check_norm_entry(const NormEntry& entry, const std::string& where, std::string_view entry_name) {
  if (entry.mode == NormMode::kMeanStd) {
    require_statistic(entry.mean, "mean", entry, where, entry_name);
    require_statistic(entry.std, "std", entry, where, entry_name);
  }
  if (entry.mode == NormMode::kQuantile) {
    require_statistic(entry.q01, "q01", entry, where, entry_name);
    require_statistic(entry.q99, "q99", entry, where, entry_name);
  }
  const char* first = nullptr;
  size_t length = 0;
  for (const auto& [name, values] : statistics(entry)) {
    if (values->empty()) continue;
    if (first != nullptr && values->size() != length) {
      throw_bad_input("{}: {}.{} has length {} but {}.{} has length {}; they must be equal", where, entry_name, first,
                      length, entry_name, name, values->size());
    }
    first = name;
    length = values->size();
    for (size_t i = 0; i < values->size(); ++i) {
      if (!std::isfinite((*values)[i])) {
        throw_bad_input("{}: {}.{}[{}] is {}, expected a finite number; compute the statistics again", where,
                        entry_name, name, i, (*values)[i]);
      }
    }
  }
  for (size_t i = 0; i < entry.std.size(); ++i) {
    if (entry.std[i] < 0) throw_bad_input("{}: {}.std[{}] is {}, below zero", where, entry_name, i, entry.std[i]);
  }
  if (entry.q01.empty() || entry.q99.empty()) return;
  for (size_t i = 0; i < entry.q01.size(); ++i) {
    if (entry.q99[i] < entry.q01[i]) {
      throw_bad_input("{}: {}.q99[{}] is {}, below q01[{}] = {}", where, entry_name, i, entry.q99[i], i, entry.q01[i]);
    }
  }
}

void require_action_width(const NormStats& stats, int64_t action_width) {
  if (stats.actions.width() <= action_width) return;
  throw_bad_input(
      "{}: the statistics of actions have length {}, more than the action width {}; they are of another robot. "
      "Choose others with --asset-id or --norm-stats.",
      stats.where, stats.actions.width(), action_width);
}

void normalize(const NormEntry& entry, NormConvention convention, double eps, std::span<const double> in,
               std::span<double> out) noexcept {
  const size_t known = static_cast<size_t>(entry.width());
  for (size_t i = 0; i < in.size(); ++i) {
    if (entry.mode == NormMode::kMeanStd) {
      const double mean = i < known ? entry.mean[i] : kRestMean;
      const double std = i < known ? entry.std[i] : kRestStd;
      out[i] = (in[i] - mean) / (std + eps);
    } else if (entry.mode == NormMode::kIdentity || i >= known) {
      out[i] = in[i];
    } else if (convention == NormConvention::kOpenpi) {
      out[i] = (in[i] - entry.q01[i]) / (entry.q99[i] - entry.q01[i] + eps) * 2.0 - 1.0;
    } else {
      const double range = entry.q99[i] - entry.q01[i];
      out[i] = 2.0 * (in[i] - entry.q01[i]) / (range == 0 ? eps : range) - 1.0;
    }
  }
}

void unnormalize(const NormEntry& entry, NormConvention convention, double eps, std::span<const double> in,
                 std::span<double> out) noexcept {
  const size_t known = static_cast<size_t>(entry.width());
  for (size_t i = 0; i < in.size(); ++i) {
    if (entry.mode == NormMode::kMeanStd) {
      const double mean = i < known ? entry.mean[i] : kRestMean;
      const double std = i < known ? entry.std[i] : kRestStd;
      out[i] = in[i] * (convention == NormConvention::kOpenpi ? std + eps : std) + mean;
    } else if (entry.mode == NormMode::kIdentity || i >= known) {
      out[i] = in[i];
    } else if (convention == NormConvention::kOpenpi) {
      out[i] = (in[i] + 1.0) / 2.0 * (entry.q99[i] - entry.q01[i] + eps) + entry.q01[i];
    } else {
      const double range = entry.q99[i] - entry.q01[i];
      out[i] = (in[i] + 1.0) * (range == 0 ? eps : range) / 2.0 + entry.q01[i];
    }
  }
}

std::vector<double> normalize_state(const NormStats& stats, std::span<const double> state) {
  std::vector<double> out(state.size());
  normalize(stats.state, stats.convention, stats.eps, state, out);
  return out;
}

std::vector<double> unnormalize_state(const NormStats& stats, std::span<const double> state) {
  std::vector<double> out(state.size());
  unnormalize(stats.state, stats.convention, stats.eps, state, out);
  return out;
}

std::vector<double> normalize_actions(const NormStats& stats, std::span<const double> rows, int64_t width) {
  return each_row(stats, rows, width, &normalize);
}

std::vector<double> unnormalize_actions(const NormStats& stats, std::span<const double> rows, int64_t width) {
  return each_row(stats, rows, width, &unnormalize);
}

}  // namespace tendon
