// Times of whole calls, of their stages and operations, and what they draw.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "workload.h"

namespace tendon::cli {

struct MeasureOptions {
  int64_t iters = 0;  // timed calls; 0: at least 3, and `seconds`
  double seconds = 10;
  double power_seconds = 2;  // calls back to back for the energy counter; 0: none
  bool cold = false;         // empty the caches before each timed call
};

// Sorted milliseconds.
class Times {
 public:
  explicit Times(std::vector<double> ms = {});
  double percentile(double p) const;  // nearest rank
  double max() const { return ms_.back(); }
  double min() const { return ms_.front(); }
  size_t count() const { return ms_.size(); }
  // Where the median of all calls lies with 95 % confidence, from the order of the timed ones alone: no distribution is
  // assumed. The whole range below six calls.
  std::pair<double, double> median_interval() const;
  // Calls that took 1 % and ten median deviations longer than the median. They stay in all figures.
  size_t outliers() const;

 private:
  std::vector<double> ms_;
};

// p50, p90, p99, max, min, median_95, outliers.
nlohmann::ordered_json percentiles(const Times& times);

struct OpClass {
  double us = 0, flops = 0;
  int64_t count = 0;
};

// What the device drew while calls ran back to back, idle power included.
struct Energy {
  std::string missing;  // why the fields are empty
  int64_t calls = 0;
  double seconds = 0;
  std::optional<double> j_per_call, mean_w;
  std::optional<double> core_mhz, memory_mhz;  // medians of samples taken between calls
  std::optional<double> idle_w;                // before the calls
  std::optional<std::string> slowed_by;        // what held the clocks down in any sample; empty: nothing
  // Without what the card draws when it does nothing.
  std::optional<double> j_per_call_above_idle() const;
};

struct Measured {
  double plan_s = 0;         // plan made and captured
  double first_call_ms = 0;  // right after it
  Times wall;
  std::optional<Times> device;  // none where the host computes
  // Medians, in order. On a host: sums over the operations of the timed calls. On a device: each stage replayed as a
  // graph of its own.
  std::vector<std::pair<std::string, double>> stage_ms;
  std::map<std::string, OpClass> ops;  // means; on a device: launched one by one with events between them
  Energy energy;
};

// Throws Error when a call fails.
Measured measure(Engine& engine, const Workload& workload, const MeasureOptions& options);

// Throws Error when a call failed.
void require(const Status& status);
// One call; throws Error when it fails.
void call(Engine& engine, const Workload& workload, std::vector<float>& actions, OpTimes* times = nullptr);

// Calls `repeats` times with the same input: the first call whose result differs in any byte from the first one, or -1.
int64_t first_different_call(Engine& engine, const Workload& workload, int64_t repeats);

}  // namespace tendon::cli
