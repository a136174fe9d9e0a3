#include "trace/render_table.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tendon::trace {
namespace {

// "-" where there is nothing.
std::string shown(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell.value)) return *text;
  if (const auto* count = std::get_if<int64_t>(&cell.value)) return std::to_string(*count);
  if (const auto* number = std::get_if<double>(&cell.value)) return fmt::format("{:.{}f}", *number, cell.decimals);
  return "-";
}

std::string for_markdown(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '*' || c == '_') escaped += '\\';
    escaped += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return escaped;
}

std::string for_markdown(const Cell& cell) {
  constexpr size_t kLongest = 96;  // names of kernels go on and on
  const std::string text = shown(cell);
  if (text.size() <= kLongest) return for_markdown(text);
  size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;  // not inside a character
  return for_markdown(text.substr(0, end)) + "…";
}

std::string for_csv(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

nlohmann::ordered_json for_json(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell.value)) return *text;
  if (const auto* count = std::get_if<int64_t>(&cell.value)) return *count;
  if (const auto* number = std::get_if<double>(&cell.value)) return *number;
  return nullptr;
}

bool is_number(const Table& table, size_t column) {
  return std::ranges::all_of(table.rows, [&](const std::vector<Cell>& row) {
    return !std::holds_alternative<std::string>(row[column].value);
  });
}

}  // namespace

std::string to_markdown(const Document& document) {
  std::string text = fmt::format("# {}\n", for_markdown(document.title));
  for (const Table& table : document.tables) {
    if (table.rows.empty() && table.remarks.empty()) continue;
    text += fmt::format("\n## {}\n\n", table.title);
    for (const std::string& remark : table.remarks) text += fmt::format("{}\n\n", for_markdown(remark));
    if (table.rows.empty()) continue;
    if (&table == &document.tables.front() && table.rows.size() == 1) {
      text += "| | |\n|---|---:|\n";
      for (size_t i = 0; i < table.columns.size(); ++i) {
        text += fmt::format("| {} | {} |\n", table.columns[i].title, for_markdown(table.rows[0][i]));
      }
      continue;
    }
    text += "|";
    for (const Column& column : table.columns) text += fmt::format(" {} |", column.title);
    text += "\n|";
    for (size_t i = 0; i < table.columns.size(); ++i) text += is_number(table, i) ? "---:|" : "---|";
    text += "\n";
    for (const std::vector<Cell>& row : table.rows) {
      text += "|";
      for (const Cell& cell : row) text += fmt::format(" {} |", for_markdown(cell));
      text += "\n";
    }
  }
  if (!document.notes.empty()) text += "\n## Notes\n\n";
  for (const std::string& note : document.notes) text += fmt::format("- {}\n", for_markdown(note));
  return text;
}

std::string to_csv(const Document& document) {
  std::string text;
  for (const Table& table : document.tables) {
    if (table.rows.empty()) continue;
    text += fmt::format("{}{}\n", text.empty() ? "" : "\n", table.key);
    for (size_t i = 0; i < table.columns.size(); ++i) text += (i == 0 ? "" : ",") + table.columns[i].key;
    text += "\n";
    for (const std::vector<Cell>& row : table.rows) {
      for (size_t i = 0; i < row.size(); ++i) {
        const bool nothing = std::holds_alternative<std::monostate>(row[i].value);
        text += (i == 0 ? "" : ",") + (nothing ? std::string() : for_csv(shown(row[i])));
      }
      text += "\n";
    }
  }
  return text;
}

std::string to_json(const Document& document, int schema) {
  nlohmann::ordered_json json = {{"schema", schema}, {"title", document.title}};
  for (size_t t = 0; t < document.tables.size(); ++t) {
    const Table& table = document.tables[t];
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const std::vector<Cell>& row : table.rows) {
      nlohmann::ordered_json object;
      for (size_t i = 0; i < row.size(); ++i) object[table.columns[i].key] = for_json(row[i]);
      rows.push_back(object);
    }
    json[table.key] = t == 0 && rows.size() == 1 ? rows[0] : rows;
    if (!table.remarks.empty()) json[table.key + "_remarks"] = table.remarks;
  }
  json["notes"] = document.notes;
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace tendon::trace
