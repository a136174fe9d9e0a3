#include "trace/render.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "trace/render_table.h"

namespace tendon::trace {
namespace {

double ms(double us) { return us * 1e-3; }
double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

const char* counted(WorkKind kind) { return kind == WorkKind::kKernels ? "kernel" : "operation"; }

template <class... Cells>
void append(std::vector<Cell>& row, Cells&&... cells) {
  (row.emplace_back(std::forward<Cells>(cells)), ...);
}

Cell or_nothing(const std::optional<int64_t>& count) { return count ? Cell(*count) : Cell(); }

Table totals(const Summary& s) {
  Table table{.title = "Totals", .key = "totals", .columns = {}, .rows = {{}}, .remarks = {}};
  const auto add = [&](const std::string& title, const std::string& key, Cell cell) {
    table.columns.push_back({title, key});
    table.rows[0].push_back(std::move(cell));
  };
  const std::string word = counted(s.kind);
  add("tool", "tool", s.tool);
  add(word + "s", "kernels", s.kernels);
  add(word + " time ms", "kernel_ms", ms(s.kernel_us));
  add("busy ms", "busy_ms", ms(s.busy_us));
  add("span ms", "span_ms", ms(s.span_us));
  add("utilisation %", "utilisation_percent", Cell(100 * s.utilisation(), 1));
  add("gaps ≥ 1 µs", "gaps", s.gap_count);
  add("gaps ms", "gap_ms", ms(s.gap_us));
  add("kernel launches", "launches", or_nothing(s.launches));
  add("graph launches", "graph_launches", or_nothing(s.graph_launches));
  add("calls found", "calls", s.calls);
  add("denoise steps a call", "steps", s.steps);
  return table;
}

Table stage_table(const Summary& s, const std::vector<StageRow>& rows, std::string title, std::string key) {
  Table table{.title = std::move(title),
              .key = std::move(key),
              .columns = {{"stage", "stage"},
                          {fmt::format("{}s", counted(s.kind)), "kernels"},
                          {"time ms", "time_ms"},
                          {"share %", "share_percent"},
                          {"span ms", "span_ms"},
                          {"time a call ms", "time_per_call_ms"},
                          {"span a call ms", "span_per_call_ms"}},
              .rows = {},
              .remarks = {}};
  const double calls = static_cast<double>(s.calls);
  for (const StageRow& row : rows) {
    table.rows.push_back({row.name, row.count, ms(row.us), Cell(percent(row.us, s.kernel_us), 1), ms(row.span_us),
                          s.calls > 0 ? Cell(ms(row.us) / calls) : Cell(),
                          s.calls > 0 ? Cell(ms(row.span_us) / calls) : Cell()});
  }
  return table;
}

Table stages(const Summary& s) {
  Table table = stage_table(s, s.stages, "Stages", "stages");
  for (const std::string& line : s.evidence) table.remarks.push_back("Told from " + line + ".");
  if (s.calls == 0 && s.kernels > 0) table.remarks.emplace_back("The stages are unknown.");
  return table;
}

Table name_table(const Summary& s, const std::vector<Row>& rows, std::string title, std::string key, bool with_class) {
  Table table{
      .title = std::move(title), .key = std::move(key), .columns = {{"name", "name"}}, .rows = {}, .remarks = {}};
  if (with_class) table.columns.push_back({"class", "class"});
  for (Column column : {Column{"count", "count"}, Column{"total ms", "total_ms"}, Column{"share %", "share_percent"},
                        Column{"mean µs", "mean_us"}, Column{"longest µs", "longest_us"}}) {
    table.columns.push_back(std::move(column));
  }
  for (const Row& row : rows) {
    std::vector<Cell> cells = {row.name};
    if (with_class) cells.emplace_back(row.op_class);
    append(cells, row.count, ms(row.us), Cell(percent(row.us, s.kernel_us), 1),
           Cell(row.us / static_cast<double>(row.count), 2), Cell(row.longest_us, 2));
    table.rows.push_back(std::move(cells));
  }
  return table;
}

Table products(const Summary& s) {
  Table table{.title = "Matrix products by shape (M×N×K)",
              .key = "products",
              .columns = {{"operator", "op"},
                          {"shape", "shape"},
                          {"types", "types"},
                          {"count", "count"},
                          {"total ms", "total_ms"},
                          {"mean µs", "mean_us"},
                          {"TFLOP/s", "tflops"},
                          {"of peak %", "peak_percent"}},
              .rows = {},
              .remarks = {}};
  for (const ProductRow& row : s.products) {
    table.rows.push_back({row.op, row.shape, row.types, row.count, ms(row.us),
                          Cell(row.us / static_cast<double>(row.count), 2), Cell(row.tflops(), 3),
                          s.peak_tflops > 0 ? Cell(percent(row.tflops(), s.peak_tflops), 1) : Cell()});
  }
  if (!s.products.empty() && s.peak_tflops > 0) {
    table.remarks.push_back(fmt::format("Peak: {:.1f} TFLOP/s.", s.peak_tflops));
  }
  return table;
}

Table gaps(const Summary& s) {
  Table table{.title = "Longest gaps",
              .key = "longest_gaps",
              .columns = {{"µs", "us"}, {"at ms", "at_ms"}, {"after", "after"}, {"before", "before"}},
              .rows = {},
              .remarks = {}};
  for (const Gap& gap : s.gaps) table.rows.push_back({Cell(gap.us, 1), ms(gap.at_us), gap.after, gap.before});
  return table;
}

std::string write(const Document& document, Format format) {
  switch (format) {
    case Format::kCsv:
      return to_csv(document);
    case Format::kJson:
      return to_json(document, kReportSchema);
    case Format::kMarkdown:
      break;
  }
  return to_markdown(document);
}

struct Both {
  StagedRow a, b;
};

}  // namespace

std::string render(const Summary& s, Format format, By by) {
  Document document{.title = "Trace report: " + s.path, .tables = {totals(s)}, .notes = s.notes};
  const auto wants = [&](By one) { return by == By::kAll || by == one; };
  const std::string word = counted(s.kind);
  if (wants(By::kStage)) {
    document.tables.push_back(stages(s));
    document.tables.push_back(stage_table(s, s.denoise_steps, "Denoise by step", "denoise_steps"));
  }
  if (wants(By::kOp)) {
    document.tables.push_back(name_table(s, s.classes, "Classes of operations", "classes", false));
    document.tables.push_back(products(s));
  }
  if (wants(By::kKernel)) {
    document.tables.push_back(name_table(s, s.by_time, fmt::format("Top {}s by time", word), "by_time", true));
    document.tables.push_back(name_table(s, s.by_count, fmt::format("Top {}s by count", word), "by_count", true));
  }
  if (by == By::kAll) {
    document.tables.push_back(name_table(s, s.api, "Host: runtime calls and phases", "api", false));
    document.tables.push_back(name_table(s, s.copies, "Copies and fills", "copies", false));
    document.tables.push_back(gaps(s));
  }
  for (const std::string& device : s.devices) document.notes.push_back("device: " + device);
  for (const auto& [key, value] : s.facts) document.notes.push_back(key + ": " + value);
  return write(document, format);
}

std::string render_difference(const Summary& a, const Summary& b, Format format, size_t top) {
  Document document{.title = fmt::format("Trace difference: {} → {}", a.path, b.path), .tables = {}, .notes = {}};
  Table total{.title = "Totals",
              .key = "totals",
              .columns = {{"", "what"}, {"A", "a"}, {"B", "b"}, {"B − A", "difference"}, {"B / A", "ratio"}},
              .rows = {},
              .remarks = {}};
  const auto compare = [](Table& table, std::vector<Cell> row, double x, double y) {
    append(row, x, y, y - x, x > 0 ? Cell(y / x) : Cell());
    table.rows.push_back(std::move(row));
  };
  compare(total, {"kernel time ms"}, ms(a.kernel_us), ms(b.kernel_us));
  compare(total, {"busy ms"}, ms(a.busy_us), ms(b.busy_us));
  compare(total, {"span ms"}, ms(a.span_us), ms(b.span_us));
  compare(total, {"utilisation %"}, 100 * a.utilisation(), 100 * b.utilisation());
  compare(total, {"kernels"}, static_cast<double>(a.kernels), static_cast<double>(b.kernels));
  for (int i = 0; i < kStages; ++i) {
    const std::string_view name = stage_name(static_cast<Stage>(i));
    const auto of = [&](const Summary& s) {
      const auto found = std::ranges::find(s.stages, name, &StageRow::name);
      return found == s.stages.end() ? 0.0 : found->us;
    };
    if (of(a) + of(b) > 0) compare(total, {fmt::format("{} ms", name)}, ms(of(a)), ms(of(b)));
  }
  document.tables.push_back(std::move(total));

  std::map<std::pair<std::string, std::string>, Both> rows;
  for (const StagedRow& row : a.staged) rows[{row.stage, row.name}].a = row;
  for (const StagedRow& row : b.staged) rows[{row.stage, row.name}].b = row;
  std::vector<std::pair<std::pair<std::string, std::string>, Both>> sorted(rows.begin(), rows.end());
  std::ranges::stable_sort(sorted, std::greater{},
                           [](const auto& row) { return std::fabs(row.second.b.us - row.second.a.us); });
  Table table{.title = "By stage and operation, largest difference first",
              .key = "rows",
              .columns = {{"stage", "stage"},
                          {"name", "name"},
                          {"count A", "count_a"},
                          {"count B", "count_b"},
                          {"A ms", "a_ms"},
                          {"B ms", "b_ms"},
                          {"B − A ms", "difference_ms"},
                          {"B / A", "ratio"}},
              .rows = {},
              .remarks = {}};
  for (size_t i = 0; i < sorted.size() && i < top; ++i) {
    const auto& [key, both] = sorted[i];
    compare(table, {key.first, key.second, both.a.count, both.b.count}, ms(both.a.us), ms(both.b.us));
  }
  document.tables.push_back(std::move(table));
  if (sorted.size() > top) document.notes.push_back(fmt::format("{} more rows differ less", sorted.size() - top));
  for (const Summary* s : {&a, &b}) {
    for (const std::string& line : s->evidence) document.notes.push_back(s->path + ": stages told from " + line);
    for (const std::string& note : s->notes) document.notes.push_back(s->path + ": " + note);
  }
  return write(document, format);
}

}  // namespace tendon::trace
