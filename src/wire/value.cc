#include "wire/value.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"

namespace tendon {
namespace {

template <class T>
T load(const std::byte* at, bool swap) {
  std::array<std::byte, sizeof(T)> bytes;
  std::memcpy(bytes.data(), at, sizeof(T));
  if (swap) std::ranges::reverse(bytes);
  return std::bit_cast<T>(bytes);
}

template <class T>
void append_as(const WireArray& array, std::vector<double>& out) {
  const bool swap = array.big_endian == (std::endian::native == std::endian::little);
  const auto count = static_cast<size_t>(array.elements());
  for (size_t i = 0; i < count; ++i)
    out.push_back(static_cast<double>(load<T>(array.data.data() + i * sizeof(T), swap)));
}

void append_array(const WireArray& array, std::vector<double>& out) {
  const char kind = array.kind;
  switch (array.item_bytes) {
    case 1:
      return kind == 'i' ? append_as<int8_t>(array, out) : append_as<uint8_t>(array, out);
    case 2:
      if (kind == 'f') {
        const bool swap = array.big_endian == (std::endian::native == std::endian::little);
        for (size_t i = 0; i < array.data.size(); i += 2)
          out.push_back(double{half_to_float(load<uint16_t>(array.data.data() + i, swap))});
        return;
      }
      return kind == 'i' ? append_as<int16_t>(array, out) : append_as<uint16_t>(array, out);
    case 4:
      if (kind == 'f') return append_as<float>(array, out);
      return kind == 'i' ? append_as<int32_t>(array, out) : append_as<uint32_t>(array, out);
    default:
      if (kind == 'f') return append_as<double>(array, out);
      return kind == 'i' ? append_as<int64_t>(array, out) : append_as<uint64_t>(array, out);
  }
}

void append_numbers(const WireValue& value, std::string_view key, std::vector<double>& out) {
  if (const auto* flag = value.get_if<bool>()) {
    out.push_back(*flag ? 1.0 : 0.0);
  } else if (const auto* integer = value.get_if<int64_t>()) {
    out.push_back(static_cast<double>(*integer));
  } else if (const auto* natural = value.get_if<uint64_t>()) {
    out.push_back(static_cast<double>(*natural));
  } else if (const auto* number = value.get_if<double>()) {
    out.push_back(*number);
  } else if (const auto* array = value.get_if<WireArray>(); array != nullptr && array->is_numeric()) {
    append_array(*array, out);
  } else if (const auto* list = value.get_if<WireList>()) {
    for (const WireValue& item : *list) append_numbers(item, key, out);
  } else {
    throw_bad_input("observation key '{}' must hold numbers, but it holds {}.", key, value.describe());
  }
}

void append_utf8(uint32_t code, std::string& out) {
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) code = 0xfffd;
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

std::string text_element(const WireArray& array) {
  std::string text;
  if (array.kind == 'S') {
    text.assign(reinterpret_cast<const char*>(array.data.data()), array.data.size());
  } else {
    const bool swap = array.big_endian == (std::endian::native == std::endian::little);
    for (size_t i = 0; i + 4 <= array.data.size(); i += 4)
      append_utf8(load<uint32_t>(array.data.data() + i, swap), text);
  }
  text.erase(text.find_last_not_of('\0') + 1);  // NumPy pads with NUL
  return text;
}

}  // namespace

int64_t WireArray::elements() const {
  int64_t product = 1;
  for (const int64_t dim : shape) product *= dim;
  return product;
}

std::string WireArray::dtype_text() const {
  const char order = item_bytes == 1 || kind == 'S' ? '|' : (big_endian ? '>' : '<');
  return fmt::format("{}{}{}", order, kind, kind == 'U' ? item_bytes / 4 : item_bytes);
}

std::string WireValue::describe() const {
  constexpr const char* kNames[] = {"nothing (nil)", "a boolean", "an integer", "an integer", "a number",
                                    "text",          "bytes",     "a list",     "a map",      ""};
  if (const auto* array = get_if<WireArray>())
    return fmt::format("an array {} ({})", array->dtype_text(), fmt::join(array->shape, ", "));
  return kNames[value.index()];
}

const WireValue* find_key(const WireMap& map, std::string_view key) {
  for (auto entry = map.rbegin(); entry != map.rend(); ++entry) {
    if (entry->key == key) return &entry->value;
  }
  return nullptr;
}

std::vector<double> to_numbers(const WireValue& value, std::string_view key) {
  std::vector<double> numbers;
  append_numbers(value, key, numbers);
  return numbers;
}

std::vector<int64_t> shape_of(const WireValue& value, std::string_view key) {
  if (const auto* array = value.get_if<WireArray>()) return array->shape;
  const auto* list = value.get_if<WireList>();
  if (list == nullptr) return {};
  std::vector<int64_t> shape{std::ssize(*list)};
  for (size_t i = 0; i < list->size(); ++i) {
    const std::vector<int64_t> inner = shape_of((*list)[i], key);
    if (i == 0) shape.insert(shape.end(), inner.begin(), inner.end());
    if (!std::ranges::equal(std::span(shape).subspan(1), inner)) {
      throw_bad_input("observation key '{}' is a ragged list: element {} has another shape than element 0.", key, i);
    }
  }
  return shape;
}

std::string to_text(const WireValue& value, std::string_view key) {
  if (const auto* text = value.get_if<std::string_view>()) return std::string(*text);
  if (const auto* bytes = value.get_if<WireBytes>())
    return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
  if (const auto* array = value.get_if<WireArray>();
      array != nullptr && !array->is_numeric() && array->elements() == 1) {
    return text_element(*array);
  }
  if (const auto* list = value.get_if<WireList>(); list != nullptr && list->size() == 1) {
    return to_text(list->front(), key);
  }
  throw_bad_input("observation key '{}' must hold one text, but it holds {}.", key, value.describe());
}

}  // namespace tendon
