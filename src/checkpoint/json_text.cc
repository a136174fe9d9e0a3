#include "checkpoint/json_text.h"

#include <fstream>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tendon {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxKeys = 20'000;  // ordered_json looks keys up one by one

// Puts NaN, Infinity and -Infinity outside strings into quotes.
std::string quote_non_finite(std::string_view text) {
  std::string quoted;
  quoted.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (in_string) {
      const size_t taken = c == '\\' && i + 1 < text.size() ? 2 : 1;
      in_string = c != '"';
      quoted.append(text.substr(i, taken));
      i += taken;
      continue;
    }
    size_t literal = 0;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
      if (text.substr(i).starts_with(word)) literal = word.size();
    }
    if (literal > 0) {
      quoted.append("\"").append(text.substr(i, literal)).append("\"");
      i += literal;
      continue;
    }
    in_string = c == '"';
    quoted.push_back(c);
    ++i;
  }
  return quoted;
}

// "[json.exception.parse_error.101] parse error at line 1, column 2: ..." without the bracket.
std::string parser_message(const nlohmann::json::exception& error) {
  std::string_view message = error.what();
  if (const size_t end = message.find("] "); message.starts_with('[') && end != std::string_view::npos) {
    message.remove_prefix(end + 2);
  }
  return shorten(message, 240);
}

template <class Json>
Json parse(std::string_view text, const std::string& where, size_t max_keys) {
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, nlohmann::detail::parse_event_t event, Json& parsed) {
    using Event = nlohmann::detail::parse_event_t;
    if (depth > kMaxDepth)
      throw_bad_input("{}: JSON nested deeper than {} levels; is this the right file?", where, kMaxDepth);
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const std::string& key = parsed.template get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        throw_bad_input("{}: the key '{}' appears twice in one JSON object; remove one of the two", where,
                        shorten(key));
      }
      if (keys.back().size() > max_keys) {
        throw_bad_input("{}: more than {} keys in one JSON object; is this the right file?", where, max_keys);
      }
    }
    return true;
  };
  try {
    return Json::parse(text, watch);
  } catch (const nlohmann::json::exception& error) {
    throw_bad_input("{}: not valid JSON: {}", where, parser_message(error));
  }
}

}  // namespace

nlohmann::ordered_json parse_json(std::string_view text, const std::string& where) {
  return parse<nlohmann::ordered_json>(quote_non_finite(text), where, kMaxKeys);
}

nlohmann::json parse_json_header(std::string_view text, const std::string& where) {
  return parse<nlohmann::json>(text, where, text.size());
}

std::string read_text_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw_bad_input("{}: {}", path.string(),
                    std::filesystem::exists(path, error) ? "not a regular file" : "no such file");
  }
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) throw_bad_input("{}: cannot be read: {}", path.string(), error.message());
  if (bytes > kMaxJsonFileBytes) {
    throw_bad_input("{}: {} bytes; a JSON file of at most {} bytes was expected", path.string(), bytes,
                    kMaxJsonFileBytes);
  }
  std::string text(static_cast<size_t>(bytes), '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size()))) {
    throw_bad_input("{}: cannot be read; check its permissions", path.string());
  }
  return text;
}

std::string shorten(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  return std::string(text.substr(0, limit)) + "...";
}

}  // namespace tendon
