// The rungs of the optimisation ladder as options of a plan and its backend, and their picture.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "session.h"

namespace tendon::cli {

// What a rung switches off; the one that is served switches off nothing.
struct Rung {
  std::string name, what;
  bool graph = true, gemm_table = true;
  std::vector<std::string> expand, without;  // as the options of these names
  std::string precision;
};

// From the plainest to the one that is served; each adds one thing to the one before. Of bf16, one with 8-bit operands
// comes behind it.
std::vector<Rung> ladder_rungs(const std::string& precision);

// The user's options with the rung's.
ModelOptions on_rung(const ModelOptions& options, const Rung& rung);

struct RungResult {
  Rung rung;
  double p50_ms = 0;
  std::vector<std::pair<std::string, double>> stage_ms;
  std::optional<size_t> kernels;                                   // kernels and copies of one call
  size_t operations = 0;                                           // of the plan
  std::optional<double> relative = {}, max_abs = {}, cosine = {};  // the actions against f32
};

// A bar for every rung; a line at the floor, where there is one. `title` and `subtitle` are plain text.
std::string ladder_chart(const std::vector<RungResult>& results, std::optional<double> floor_ms,
                         const std::string& title, const std::string& subtitle);

}  // namespace tendon::cli
