#include "policy/files/state_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "policy/files/file.h"

namespace tendon {
namespace {

constexpr size_t kMaxListBytes = size_t{4} << 20;
constexpr std::string_view kBlanks = " \t\r\n\v\f";

bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }
bool is_separator(char c) { return c == ',' || c == ';'; }

std::string_view strip(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// What a message shows of the user's text.
std::string shown(std::string_view text) {
  std::string result(text.substr(0, 40));
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text.size() > 40 ? result + "..." : result;
}

// The elements of a list: JSON brackets around it are optional, separators are blanks or one ',' or ';'.
std::vector<std::string_view> split_list(std::string_view text, std::string_view name) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark
  text = strip(text);
  const bool opened = text.starts_with('[');
  const bool closed = text.ends_with(']');
  if (opened != closed) throw_bad_input("{}: the list has a bracket on one side only. Write [1, 2] or 1,2.", name);
  if (opened) text = strip(text.substr(1, text.size() - 2));
  if (text.find_first_of("[]") != std::string_view::npos) {
    throw_bad_input("{}: the list is nested. Give one flat list of numbers for one observation.", name);
  }
  std::vector<std::string_view> elements;
  bool expect_element = false;  // a separator needs an element on both sides
  size_t i = 0;
  while (i < text.size()) {
    if (is_blank(text[i])) {
      ++i;
    } else if (is_separator(text[i])) {
      if (elements.empty() || expect_element) {
        throw_bad_input("{}: element {} is missing between separators.", name, elements.size());
      }
      expect_element = true;
      ++i;
    } else {
      size_t end = i;
      while (end < text.size() && !is_blank(text[end]) && !is_separator(text[end])) ++end;
      elements.push_back(text.substr(i, end - i));
      expect_element = false;
      i = end;
    }
  }
  if (expect_element)
    throw_bad_input("{}: the list ends with a separator; element {} is missing.", name, elements.size());
  return elements;
}

template <class T>
std::from_chars_result parse_whole(std::string_view text, T& value) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec == std::errc{} && result.ptr != text.data() + text.size()) result.ec = std::errc::invalid_argument;
  return result;
}

struct ListText {
  std::string text;
  std::string name;
};

// The list itself or the content of the file that `argument` names.
ListText list_text(const std::string& argument, const char* what) {
  if (strip(argument).empty()) throw_bad_input("the {} is empty. Give a file or a list such as 0.1,0.2.", what);
  std::error_code error;
  if (std::filesystem::exists(argument, error)) {
    return {read_small_file(argument, kMaxListBytes, what), fmt::format("{} '{}'", what, argument)};
  }
  if (std::string_view("+-.[0123456789").find(strip(argument).front()) == std::string_view::npos ||
      argument.find('/') != std::string::npos) {
    throw_bad_input("{} '{}' is neither an existing file nor a list of numbers. Check the path, or write 0.1,0.2.",
                    what, shown(argument));
  }
  return {argument, fmt::format("{} '{}'", what, shown(argument))};
}

}  // namespace

std::vector<double> parse_numbers(std::string_view text, std::string_view name) {
  std::vector<double> values;
  for (const std::string_view element : split_list(text, name)) {
    double value = 0.0;
    const auto result = parse_whole(element, value);
    if (result.ec == std::errc::result_out_of_range) {
      throw_bad_input("{}: element {}, '{}', is outside the range of a double.", name, values.size(), shown(element));
    }
    if (result.ec != std::errc{}) {
      throw_bad_input(
          "{}: element {}, '{}', is not a number. Give a JSON array or numbers separated by commas, with '.' as the "
          "decimal point.",
          name, values.size(), shown(element));
    }
    if (!std::isfinite(value)) {
      throw_bad_input("{}: element {} is {}; every element must be a finite number.", name, values.size(), value);
    }
    values.push_back(value);
  }
  return values;
}

std::vector<double> parse_state(const std::string& argument, int width) {
  const ListText list = list_text(argument, "state");
  std::vector<double> values = parse_numbers(list.text, list.name);
  if (values.size() != static_cast<size_t>(width)) {
    throw_bad_input("{}: the robot's state has {} numbers, but {} were given.", list.name, width, values.size());
  }
  return values;
}

std::vector<int32_t> parse_tokens(const std::string& argument, int vocab_size) {
  const ListText list = list_text(argument, "token list");
  std::vector<int32_t> ids;
  for (const std::string_view element : split_list(list.text, list.name)) {
    int32_t id = 0;
    if (parse_whole(element, id).ec != std::errc{} || id < 0 || id >= vocab_size) {
      throw_bad_input("{}: element {}, '{}', is not a token id: an integer from 0 to {} is needed.", list.name,
                      ids.size(), shown(element), vocab_size - 1);
    }
    ids.push_back(id);
  }
  if (ids.empty()) throw_bad_input("{}: the list has no token ids; give at least one.", list.name);
  return ids;
}

}  // namespace tendon
