// JSON from files that people and other tools wrote: strict where it must be, with messages that name the file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace tendon {

inline constexpr size_t kMaxJsonFileBytes = 16U << 20;

// Keeps the order of keys. Throws Error(kBadInput) on a syntax error, a repeated key, nesting deeper than 64, or more
// than 20,000 keys in one object. NaN, Infinity and -Infinity, which Python writes though JSON has no such thing, come
// back as the strings "NaN" and so on, so that whoever wants a number can say which one is wrong.
nlohmann::ordered_json parse_json(std::string_view text, const std::string& where);

// The same for the header of a safetensors file: any number of keys, keys sorted, no NaN.
nlohmann::json parse_json_header(std::string_view text, const std::string& where);

// Whole file. Throws Error(kBadInput) when it is missing, unreadable or larger than kMaxJsonFileBytes.
std::string read_text_file(const std::filesystem::path& path);

// "a string", "null", ... for messages.
template <class Json>
std::string_view json_type(const Json& value) {
  switch (value.type()) {
    case nlohmann::detail::value_t::null:
      return "null";
    case nlohmann::detail::value_t::object:
      return "an object";
    case nlohmann::detail::value_t::array:
      return "a list";
    case nlohmann::detail::value_t::string:
      return "a string";
    case nlohmann::detail::value_t::boolean:
      return "a boolean";
    case nlohmann::detail::value_t::number_integer:
    case nlohmann::detail::value_t::number_unsigned:
      return "an integer";
    case nlohmann::detail::value_t::number_float:
      return "a number with a fraction";
    default:
      return "something else";
  }
}

// At most `limit` bytes, with "..." in place of the rest: text from a broken file may be of any length.
std::string shorten(std::string_view text, size_t limit = 160);

}  // namespace tendon
