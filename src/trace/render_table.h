// Tables of a report before they are written in one of the formats.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tendon::trace {

// Text, a count, a number with a fixed number of decimals, or nothing.
struct Cell {
  std::variant<std::monostate, std::string, int64_t, double> value;
  int decimals = 3;

  Cell() = default;
  Cell(std::string text) : value(std::move(text)) {}  // NOLINT(google-explicit-constructor): cells are listed by value
  Cell(const char* text) : value(std::string(text)) {}                      // NOLINT(google-explicit-constructor)
  Cell(int64_t count) : value(count) {}                                     // NOLINT(google-explicit-constructor)
  Cell(double number, int places = 3) : value(number), decimals(places) {}  // NOLINT(google-explicit-constructor)
};

struct Column {
  std::string title;  // for people: "total ms"
  std::string key;    // for programs: "total_ms"
};

struct Table {
  std::string title;  // "Stages"
  std::string key;    // "stages"
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
  std::vector<std::string> remarks;
};

struct Document {
  std::string title;
  std::vector<Table> tables;  // the first with one row, the totals
  std::vector<std::string> notes;
};

std::string to_markdown(const Document& document);
// One block of lines a table: its key, its columns' keys, its rows; an empty line between blocks.
std::string to_csv(const Document& document);
std::string to_json(const Document& document, int schema);

}  // namespace tendon::trace
