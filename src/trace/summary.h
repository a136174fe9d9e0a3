// What a trace says about where the time goes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trace/stages.h"
#include "trace/trace.h"

namespace tendon::trace {

struct SummaryOptions {
  size_t top = 15;         // rows of the tables of kernels, API calls, products and gaps
  double peak_tflops = 0;  // of products; 0: not known
  LayerCounts layers;
};

// A row of any table by name.
struct Row {
  std::string name;
  int64_t count = 0;
  double us = 0;
  double longest_us = 0;
  std::string op_class = {};  // of kernels
};

struct StageRow {
  std::string name;
  int64_t count = 0;   // kernels
  double us = 0;       // sum of their times
  double span_us = 0;  // from the first one's start to the last one's end, all calls added
};

struct ProductRow {
  std::string op, types;
  std::string shape;  // "788x2560x2048": M, N, K; "8x788x256x788" with a batch in front
  int64_t count = 0;  // products
  double us = 0, flops = 0;
  double tflops() const { return us > 0 ? flops / us * 1e-6 : 0; }
};

struct Gap {
  double us = 0;
  double at_us = 0;           // since the start of the trace
  std::string after, before;  // kernels
};

// By stage and name, for comparing two traces.
struct StagedRow {
  std::string stage, name;
  int64_t count = 0;
  double us = 0;
};

struct Summary {
  std::string path, tool;
  std::vector<std::string> devices;
  std::vector<std::pair<std::string, std::string>> facts;
  WorkKind kind = WorkKind::kNothing;
  int64_t kernels = 0;
  double kernel_us = 0;  // sum of all kernel times
  double busy_us = 0;    // time in which at least one kernel, copy or fill ran
  double span_us = 0;    // from the first kernel's start to the last one's end
  double utilisation() const { return span_us > 0 ? busy_us / span_us : 0; }
  int64_t gap_count = 0;
  double gap_us = 0;
  std::vector<Gap> gaps;                            // the longest
  std::optional<int64_t> launches, graph_launches;  // none: the trace has no runtime calls
  int64_t calls = 0, steps = 0;
  std::vector<std::string> evidence;
  std::vector<StageRow> stages;
  std::vector<StageRow> denoise_steps;  // of all calls together
  std::vector<Row> classes, by_time, by_count, api, copies;
  std::vector<ProductRow> products;
  double product_us = 0;  // of products with shapes
  double peak_tflops = 0;
  std::vector<StagedRow> staged;
  std::vector<std::string> notes;
};

Summary summarize(const Trace& trace, const SummaryOptions& options);

}  // namespace tendon::trace
