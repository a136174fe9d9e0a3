#include "trace/summary.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_map>

#include <fmt/format.h>

namespace tendon::trace {
namespace {

// Operators that call the one which multiplies, and spend little time themselves.
bool calls_products(const std::string& op) { return op == "aten::matmul" || op == "aten::linear"; }

double us(int64_t ns) { return static_cast<double>(ns) * 1e-3; }

class Summarizer {
 public:
  Summarizer(const Trace& trace, const SummaryOptions& options)
      : trace_(trace), options_(options), work_(find_work(trace)), stages_(find_stages(trace, work_, options.layers)) {}

  Summary run() {
    s_.path = trace_.path;
    s_.tool = tool_name(trace_.tool);
    s_.devices = trace_.devices;
    s_.facts = trace_.facts;
    s_.notes = trace_.notes;
    s_.kind = work_.kind;
    s_.calls = stages_.calls;
    s_.steps = stages_.steps;
    s_.evidence = stages_.evidence;
    s_.peak_tflops = options_.peak_tflops;
    totals();
    if (work_.pieces.empty()) s_.notes.emplace_back("the trace has no kernels and no operators: nothing to count");
    if (work_.kind == WorkKind::kOperators) {
      s_.notes.emplace_back(
          "the trace has no kernels of a device: operators of the host are counted by their own time, without what "
          "they "
          "call");
    }
    busy_and_gaps();
    stage_rows();
    class_rows();
    name_rows();
    api_rows();
    copy_rows();
    product_rows();
    return std::move(s_);
  }

 private:
  const Event& event(const Piece& piece) const { return trace_.events[piece.event]; }

  void totals() {
    for (const Piece& piece : work_.pieces) s_.kernel_us += piece.us;
    s_.kernels = std::ssize(work_.pieces);
  }

  // Over all lanes together: what runs at the same time counts once.
  void busy_and_gaps() {
    constexpr int64_t kLeastGapNs = 1000;
    if (work_.pieces.empty()) return;
    int64_t first = INT64_MAX;
    int64_t last = 0;
    for (const Piece& piece : work_.pieces) {
      first = std::min(first, event(piece).start_ns);
      last = std::max(last, event(piece).end_ns());
    }
    s_.span_us = us(last - first);
    int64_t busy = 0;
    int64_t until = first;
    uint32_t before = 0;
    const Kind kind = work_.kind == WorkKind::kKernels ? Kind::kKernel : Kind::kOperator;
    for (const Event& one : trace_.events) {
      const bool counts =
          one.kind == kind || (kind == Kind::kKernel && (one.kind == Kind::kCopy || one.kind == Kind::kFill));
      if (!counts || one.end_ns() <= first || one.start_ns >= last) continue;
      if (one.start_ns > until) {
        const int64_t gap = one.start_ns - until;
        s_.gap_us += us(gap);
        if (gap >= kLeastGapNs) {
          ++s_.gap_count;
          s_.gaps.push_back({us(gap), us(until), trace_.strings[before], trace_.name(one)});
        }
      }
      const int64_t end = std::min(one.end_ns(), last);
      if (end > until) {
        busy += end - std::max(until, one.start_ns);
        until = end;
        before = one.name;
      }
    }
    s_.busy_us = us(busy);
    std::ranges::stable_sort(s_.gaps, std::greater{}, &Gap::us);
    if (s_.gaps.size() > options_.top) s_.gaps.resize(options_.top);
  }

  void stage_rows() {
    std::vector<StageRow> rows(kStages);
    std::map<int32_t, StageRow> steps;
    for (int i = 0; i < kStages; ++i) rows[static_cast<size_t>(i)].name = stage_name(static_cast<Stage>(i));
    int64_t stage_start = 0;
    int64_t step_start = 0;
    for (size_t i = 0; i < work_.pieces.size(); ++i) {
      const Piece& piece = work_.pieces[i];
      StageRow& row = rows[static_cast<size_t>(stages_.of_piece[i])];
      ++row.count;
      row.us += piece.us;
      // Spans are added up whenever a stage ends.
      const int64_t end = event(piece).end_ns();
      if (i == 0 || stages_.of_piece[i] != stages_.of_piece[i - 1]) stage_start = event(piece).start_ns;
      row.span_us += us(std::max<int64_t>(0, end - stage_start));
      stage_start = std::max(stage_start, end);
      const int32_t step = stages_.step[i];
      if (step < 0) continue;
      StageRow& of_step = steps[step];
      ++of_step.count;
      of_step.us += piece.us;
      if (i == 0 || stages_.step[i - 1] != step) step_start = event(piece).start_ns;
      of_step.span_us += us(std::max<int64_t>(0, end - step_start));
      step_start = std::max(step_start, end);
    }
    for (StageRow& row : rows) {
      if (row.count > 0) s_.stages.push_back(row);
    }
    for (auto& [step, row] : steps) {
      row.name = std::to_string(step);
      s_.denoise_steps.push_back(row);
    }
  }

  void class_rows() {
    std::vector<Row> rows(kOpClasses);
    for (const Piece& piece : work_.pieces) {
      Row& row = rows[static_cast<size_t>(piece.op_class)];
      ++row.count;
      row.us += piece.us;
      row.longest_us = std::max(row.longest_us, piece.us);
    }
    for (int i = 0; i < kOpClasses; ++i) {
      rows[static_cast<size_t>(i)].name = op_class_name(static_cast<OpClass>(i));
      if (rows[static_cast<size_t>(i)].count > 0) s_.classes.push_back(rows[static_cast<size_t>(i)]);
    }
    std::ranges::stable_sort(s_.classes, std::greater{}, &Row::us);
  }

  void name_rows() {
    std::unordered_map<uint32_t, Row> rows;
    std::map<std::pair<Stage, uint32_t>, StagedRow> staged;
    for (size_t i = 0; i < work_.pieces.size(); ++i) {
      const Piece& piece = work_.pieces[i];
      const uint32_t name = label(trace_, piece);
      Row& row = rows[name];
      ++row.count;
      row.us += piece.us;
      row.longest_us = std::max(row.longest_us, piece.us);
      row.op_class = op_class_name(piece.op_class);
      StagedRow& of_stage = staged[{stages_.of_piece[i], name}];
      ++of_stage.count;
      of_stage.us += piece.us;
    }
    for (auto& [name, row] : rows) {
      row.name = trace_.strings[name];
      s_.by_time.push_back(row);
    }
    // Names decide between equals, so that the tables do not depend on hashing.
    std::ranges::sort(s_.by_time, {}, &Row::name);
    s_.by_count = s_.by_time;
    std::ranges::stable_sort(s_.by_time, std::greater{}, &Row::us);
    std::ranges::stable_sort(s_.by_count, std::greater{}, &Row::count);
    cut(s_.by_time);
    cut(s_.by_count);
    for (auto& [key, row] : staged) {
      row.stage = stage_name(key.first);
      row.name = trace_.strings[key.second];
      s_.staged.push_back(row);
    }
  }

  void cut(std::vector<Row>& rows) const {
    if (rows.size() > options_.top) rows.resize(options_.top);
  }

  void api_rows() {
    s_.api = rows_of(Kind::kApi);
    if (s_.api.empty() || work_.kind != WorkKind::kKernels) return;
    int64_t launches = 0;
    int64_t graphs = 0;
    for (const Row& row : s_.api) {
      const bool graph = row.name.find("GraphLaunch") != std::string::npos;
      const bool launch = row.name.find("LaunchKernel") != std::string::npos ||
                          row.name.find("ModuleLaunch") != std::string::npos ||
                          row.name.find("LaunchCoop") != std::string::npos;
      if (graph) graphs += row.count;
      if (launch) launches += row.count;
    }
    s_.launches = launches;
    s_.graph_launches = graphs;
  }

  void copy_rows() {
    s_.copies = rows_of(Kind::kCopy);
    const std::vector<Row> fills = rows_of(Kind::kFill);
    s_.copies.insert(s_.copies.end(), fills.begin(), fills.end());
    cut(s_.api);
  }

  std::vector<Row> rows_of(Kind kind) const {
    std::unordered_map<uint32_t, Row> rows;
    for (const Event& one : trace_.events) {
      if (one.kind != kind) continue;
      Row& row = rows[one.name];
      ++row.count;
      row.us += us(one.duration_ns);
      row.longest_us = std::max(row.longest_us, us(one.duration_ns));
    }
    std::vector<Row> result;
    for (auto& [name, row] : rows) {
      row.name = trace_.strings[name];
      result.push_back(row);
    }
    std::ranges::sort(result, {}, &Row::name);
    std::ranges::stable_sort(result, std::greater{}, &Row::us);
    return result;
  }

  void product_rows() {
    std::map<std::array<std::string, 3>, ProductRow> rows;
    std::set<int64_t> counted;  // an operator may launch several kernels
    for (const Piece& piece : work_.pieces) {
      if (piece.op_class != OpClass::kGemm) continue;
      const Event& one = event(piece);
      const auto add = [&](const std::string& op, const std::string& types, const std::string& shape, double flops,
                           bool is_new) {
        ProductRow& row = rows[{op, types, shape}];
        row.op = op;
        row.types = types;
        row.shape = shape;
        row.us += piece.us;
        s_.product_us += piece.us;
        if (!is_new) return;
        ++row.count;
        row.flops += flops;
      };
      if (one.flops > 0) {
        add(trace_.strings[one.op != 0 ? one.op : one.name], "", trace_.strings[one.shape], one.flops, true);
        continue;
      }
      if (piece.op < 0) continue;
      const Event& op = trace_.events[static_cast<size_t>(piece.op)];
      if (work_.kind == WorkKind::kOperators && calls_products(trace_.name(op))) continue;
      const Product p = product_of(trace_.name(op), trace_.strings[op.shape]);
      if (p.m == 0) continue;
      const std::string shape =
          fmt::format("{}{}x{}x{}", p.batch > 1 ? fmt::format("{}x", p.batch) : "", p.m, p.n, p.k);
      add(trace_.name(op), trace_.strings[op.types], shape, p.flops(), counted.insert(piece.op).second);
    }
    for (const auto& [key, row] : rows) s_.products.push_back(row);
    std::ranges::stable_sort(s_.products, std::greater{}, &ProductRow::us);
    if (s_.products.size() > options_.top) s_.products.resize(options_.top);
  }

  const Trace& trace_;
  const SummaryOptions& options_;
  Work work_;
  Stages stages_;
  Summary s_;
};

}  // namespace

Summary summarize(const Trace& trace, const SummaryOptions& options) { return Summarizer(trace, options).run(); }

}  // namespace tendon::trace
