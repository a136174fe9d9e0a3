#include "backend/gemm/table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>
#include <tuple>

#include "base/check.h"

namespace tendon::gemm {
namespace {

constexpr std::string_view kHeader = "m,n,k,x,w,out,epilogue,kernel,us,date,commit";
constexpr size_t kFields = 11;

std::vector<std::string> split(std::string_view line) {
  std::vector<std::string> fields(1);
  for (const char c : line) {
    if (c == ',') {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

template <class T>
bool parse_number(const std::string& text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_float_type(const std::string& text, DType& dtype) {
  for (const DType known : {DType::kBf16, DType::kF32, DType::kE4m3, DType::kI8}) {
    dtype = known;
    if (text == dtype_name(known)) return true;
  }
  return false;
}

// "" or what is wrong with the line.
std::string parse_row(const std::string& line, Row& row) {
  const std::vector<std::string> f = split(line);
  if (f.size() != kFields) return fmt::format("{} fields, expected {}", f.size(), kFields);
  int64_t* const sizes[] = {&row.desc.m, &row.desc.n, &row.desc.k};
  for (size_t i = 0; i < 3; ++i) {
    if (!parse_number(f[i], *sizes[i]) || *sizes[i] < 1) return fmt::format("'{}' is not a size", f[i]);
  }
  DType* const types[] = {&row.desc.x, &row.desc.w, &row.desc.out};
  for (size_t i = 0; i < 3; ++i) {
    if (!parse_float_type(f[3 + i], *types[i])) return fmt::format("'{}' is none of bf16, f32, e4m3 and i8", f[3 + i]);
  }
  row.desc.epilogue = f[6];
  if (!known_epilogue(f[6])) return fmt::format("there is no epilogue '{}'", f[6]);
  row.kernel = f[7];
  const size_t colon = row.kernel.find(':');
  if (colon == 0 || colon == std::string::npos || colon + 1 == row.kernel.size())
    return fmt::format("'{}' is not a kernel, like own:128x128x64x3/1", row.kernel);
  if (!parse_number(f[8], row.us) || !(row.us > 0) || !std::isfinite(row.us))
    return fmt::format("'{}' is not a time", f[8]);
  row.date = f[9];
  row.commit = f[10];
  return "";
}

}  // namespace

Table Table::parse(std::string_view text, std::string name) {
  Table table;
  table.name_ = std::move(name);
  std::istringstream lines{std::string(text)};
  std::string line;
  int number = 0;
  bool header = false;
  while (std::getline(lines, line)) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line.starts_with('#')) continue;
    const auto fail = [&](const std::string& what) {
      throw_bad_input("{}, line {}: {}. A GEMM table is made by `tendon tune`; its columns are {}.", table.name_,
                      number, what, kHeader);
    };
    if (!header) {
      if (line != kHeader) fail("the header line is missing");
      header = true;
      continue;
    }
    Row row;
    row.line = number;
    if (const std::string wrong = parse_row(line, row); !wrong.empty()) fail(wrong);
    if (const Row* const other = table.find_exact(row.desc))
      fail(fmt::format("{} stands in line {} already", to_string(row.desc), other->line));
    table.rows_.push_back(std::move(row));
  }
  if (!header) throw_bad_input("{}: no header line. A GEMM table is made by `tendon tune`.", table.name_);
  return table;
}

Table Table::read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw_bad_input("Cannot read the GEMM table '{}'. Check the path and its rights.", path);
  return parse(text.str(), path);
}

std::optional<Table> Table::choose(const std::string& wanted, std::string_view card) {
  if (wanted == "none") return {};
  return wanted.empty() ? built_in(card) : read(wanted);
}

std::optional<Table> Table::built_in(std::string_view card) {
  const std::string file = table_file_name(card);
  for (const BuiltInTable* entry = kBuiltInTables; entry->file != nullptr; ++entry) {
    if (file == entry->file) return parse(entry->text, "tuning/gemm/" + file);
  }
  return {};
}

const Row* Table::find_exact(const Desc& desc) const {
  const auto found = std::ranges::find(rows_, desc, &Row::desc);
  return found == rows_.end() ? nullptr : &*found;
}

const Row* Table::find(const Desc& desc) const {
  const Row* best = nullptr;
  double best_distance = 1.0 + 1e-9;  // a factor of two
  for (const Row& row : rows_) {
    if (!row.desc.same_but_rows(desc)) continue;
    const double distance = std::fabs(std::log2(static_cast<double>(row.desc.m) / static_cast<double>(desc.m)));
    if (distance < best_distance) best = &row, best_distance = distance;
  }
  return best;
}

void Table::put(Row row) {
  const auto found = std::ranges::find(rows_, row.desc, &Row::desc);
  if (found == rows_.end()) {
    rows_.push_back(std::move(row));
  } else {
    *found = std::move(row);
  }
}

size_t Table::merge(const Table& other) {
  size_t taken = 0;
  for (const Row& row : other.rows_) {
    const Row* const known = find_exact(row.desc);
    const bool better = known == nullptr || row.date > known->date || (row.date == known->date && row.us < known->us);
    if (!better) continue;
    put(row);
    ++taken;
  }
  return taken;
}

std::string Table::text() const {
  std::vector<Row> sorted = rows_;
  std::ranges::sort(sorted, {}, [](const Row& row) {
    const Desc& d = row.desc;
    return std::tuple(d.epilogue, d.x, d.w, d.out, d.n, d.k, d.m);
  });
  std::string text = std::string(kHeader) + "\n";
  for (const Row& row : sorted) {
    const Desc& d = row.desc;
    text += fmt::format("{},{},{},{},{},{},{},{},{:.2f},{},{}\n", d.m, d.n, d.k, dtype_name(d.x), dtype_name(d.w),
                        dtype_name(d.out), d.epilogue, row.kernel, row.us, row.date, row.commit);
  }
  return text;
}

std::string table_file_name(std::string_view card) {
  std::string file;
  for (const char c : card) {
    const bool is_word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z');
    if (is_word) {
      file += c;
    } else if (c >= 'A' && c <= 'Z') {
      file += static_cast<char>(c - 'A' + 'a');
    } else if (!file.empty() && file.back() != '_') {
      file += '_';
    }
  }
  return file + ".csv";
}

}  // namespace tendon::gemm
