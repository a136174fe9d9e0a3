#include "backend/gemm/tuner.h"

#include <algorithm>
#include <limits>

namespace tendon::gemm {
namespace {

constexpr size_t kFinalists = 4;
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

bool is_own(const std::string& kernel) { return kernel.starts_with("own:") || kernel.starts_with("wgmma:"); }

void keep_faster(Measured& best, const Measured& other) {
  if (best.kernel.empty() || other.us < best.us) best = other;
}

}  // namespace

Finding measure(Trial& trial, const Desc& desc) {
  Finding finding{.desc = desc, .library_default = {}, .library_best = {}, .own_best = {}, .chosen = {}};
  std::vector<Measured> right;
  double best_us = kNoLimit;
  for (const std::string& kernel : trial.candidates()) {
    ++finding.tried;
    const double error = trial.error(kernel);
    if (!(error <= 1.0)) {
      finding.wrong += error < kNoLimit ? 1 : 0;
      continue;
    }
    const Measured measured{kernel, trial.time_us(kernel, 1.3 * best_us, false)};
    best_us = std::min(best_us, measured.us);
    if (!is_own(kernel) && finding.library_default.kernel.empty()) finding.library_default = measured;
    right.push_back(measured);
  }
  // The fastest again, with more samples: the least of many noisy medians is too good to be true.
  std::ranges::sort(right, {}, &Measured::us);
  for (size_t i = 0; i < right.size(); ++i) {
    if (i < kFinalists) {
      right[i].us = trial.time_us(right[i].kernel, kNoLimit, true);
      keep_faster(finding.chosen, right[i]);
    }
    keep_faster(is_own(right[i].kernel) ? finding.own_best : finding.library_best, right[i]);
  }
  return finding;
}

size_t tune(TuneTarget& target, const std::vector<Desc>& descs, Table& table, const TuneOptions& options) {
  std::vector<Desc> wanted;
  for (const Desc& desc : descs) {
    const bool known = !options.retune && table.find_exact(desc) != nullptr;
    if (!known && std::ranges::find(wanted, desc) == wanted.end()) wanted.push_back(desc);
  }
  const double start = options.now_s();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double begin = options.now_s();
    if (begin - start > options.budget_s) return wanted.size() - i;
    if (options.report) options.report(i, wanted.size(), wanted[i], nullptr);
    Finding finding = measure(*target.make_trial(wanted[i]), wanted[i]);
    finding.seconds = options.now_s() - begin;
    if (!finding.chosen.kernel.empty()) {
      table.put({.desc = wanted[i],
                 .kernel = finding.chosen.kernel,
                 .us = finding.chosen.us,
                 .date = options.date,
                 .commit = options.commit});
    }
    if (options.report) options.report(i + 1, wanted.size(), wanted[i], &finding);
  }
  return 0;
}

}  // namespace tendon::gemm
