// One traced call: what was recorded of it, and how that becomes the rows of a trace file.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "backend/device_tracer.h"
#include "engine/engine.h"

namespace tendon::cli {

struct Phase {
  std::string name;
  double start_us = 0, duration_us = 0;
};

struct CounterSample {
  std::string name;  // "power W"
  double at_us = 0, value = 0;
};

// All times on one clock, from the start of the call.
struct CallTrace {
  std::vector<std::pair<std::string, std::string>> facts;
  std::string device;                      // name
  bool one_by_one = false;                 // on a device, operations launched one by one: slower than the graph
  std::vector<Phase> phases;               // of the host
  OpTimes ops;                             // of the plan's operations
  std::vector<std::string> kernel_names;   // the backend's, of the plan's operations
  std::vector<DeviceActivity> activities;  // none where there is no tracer
  std::vector<CounterSample> counters;
};

// Says of each kernel in `replayed` (a graph's) which operation it belongs to, from `direct` (the same plan launched
// operation by operation): both ran the same kernels in the same order. False, and nothing changed, when they did not.
bool assign_ops(const std::vector<DeviceActivity>& direct, std::vector<DeviceActivity>& replayed);

// From the first start to the last end of its kernels, each operation; cut where the next one begins, as kernels of
// neighbours may overlap. Operations without kernels get no time.
OpTimes op_times_of(const std::vector<DeviceActivity>& activities, size_t ops);

// Throws Error(kBadInput) when the file cannot be written.
void write_call_trace(const std::string& path, const CallTrace& call, const Plan& plan, const DeviceLimits& limits);

}  // namespace tendon::cli
