// Normalisation statistics and their arithmetic, in double, as the policy was trained with.
//
// openpi (eps 1e-6):   mean/std  n = (x-mean)/(std+eps)              x = n*(std+eps)+mean
//                      quantile  n = (x-q01)/(q99-q01+eps)*2-1       x = (n+1)/2*(q99-q01+eps)+q01
// LeRobot (eps 1e-8):  mean/std  n = (x-mean)/(std+eps)              x = n*std+mean
//                      quantile  n = 2*(x-q01)/d-1                   x = (n+1)*d/2+q01,  d = q99-q01 or, if 0, eps
// Sources: openpi src/openpi/transforms.py (Normalize, Unnormalize); LeRobot processor/normalize_processor.py.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint_config.h"

namespace tendon {

enum class NormConvention { kOpenpi, kLerobot };

// Statistics of one vector. Vectors that are there have one common length; those that the mode needs are there. All are
// finite, std >= 0 and q01 <= q99.
struct NormEntry {
  NormMode mode = NormMode::kIdentity;
  std::vector<double> mean, std, q01, q99;

  // Length of the vectors that `mode` uses; 0 for the identity.
  int64_t width() const;
};

struct NormStats {
  NormConvention convention = NormConvention::kOpenpi;
  double eps = 1e-6;
  NormEntry state, actions;
  std::string where;  // file that the statistics came from, for messages and the log
};

// Reads openpi's norm_stats.json: {"norm_stats": {"state": {"mean": […], "std": […], "q01": […]|null, "q99": …},
// "actions": {…}}}; further entries and fields are ignored. `mode` is used for both entries: mean/std for π0, quantile
// for π0.5. Throws Error(kBadInput) naming file, entry and statistic for: malformed JSON, a missing entry, a statistic
// that the mode needs missing or null (never derived from another), lists that are ragged or of unequal length, NaN,
// Infinity or null among the numbers (with index), a negative std, q99 < q01.
NormStats parse_openpi_norm_stats(std::string_view text, const std::string& where, NormMode mode);

// Checks what NormEntry promises; `where` and `entry_name` are for the message. Throws Error(kBadInput).
void check_norm_entry(const NormEntry& entry, const std::string& where, std::string_view entry_name);

// Refuses statistics of actions that are longer than the model's action width D. Throws Error(kBadInput).
void require_action_width(const NormStats& stats, int64_t action_width);

// One vector of any length, in and out may be the same memory and must have one length. Statistics longer than the
// vector are cut; shorter ones leave the rest as if mean 0, std 1 (mean/std) or as it is (quantile). Allocates nothing.
void normalize(const NormEntry& entry, NormConvention convention, double eps, std::span<const double> in,
               std::span<double> out) noexcept;
void unnormalize(const NormEntry& entry, NormConvention convention, double eps, std::span<const double> in,
                 std::span<double> out) noexcept;

// state (A) → normalised (A).
std::vector<double> normalize_state(const NormStats& stats, std::span<const double> state);
std::vector<double> unnormalize_state(const NormStats& stats, std::span<const double> state);
// rows (H, width) row-major → same shape. Throw Error(kBadInput) when the statistics are longer than `width`.
std::vector<double> normalize_actions(const NormStats& stats, std::span<const double> rows, int64_t width);
std::vector<double> unnormalize_actions(const NormStats& stats, std::span<const double> rows, int64_t width);

}  // namespace tendon
