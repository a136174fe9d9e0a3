// A decoded message of the openpi policy protocol: msgpack values, and NumPy arrays in either msgpack dialect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tendon {

// A NumPy array as it lies in the message, row-major.
struct WireArray {
  char kind = 'f';     // numpy.dtype.kind: b (bool), i, u, f, S (bytes) or U (UCS-4 text)
  int item_bytes = 0;  // of one element
  bool big_endian = false;
  std::vector<int64_t> shape;       // empty for a single element
  std::span<const std::byte> data;  // exactly the elements

  int64_t elements() const;
  bool is_numeric() const { return kind != 'S' && kind != 'U'; }
  std::string dtype_text() const;  // "<f4", "|u1"
};

struct WireValue;
struct WireEntry;
using WireList = std::vector<WireValue>;
using WireMap = std::vector<WireEntry>;  // in the order of the message
using WireBytes = std::span<const std::byte>;

// Text, bytes and arrays are views of the message, which must outlive the value.
struct WireValue {
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string_view, WireBytes, WireList, WireMap,
               WireArray>
      value;

  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&value);
  }
  // "a map", "text", "an array |u1 (224, 224, 3)": for messages.
  std::string describe() const;
};

struct WireEntry {
  std::string_view key;
  WireValue value;
};

// The entry of `key`; the last one if the message has several, as a Python dict; null if there is none.
const WireValue* find_key(const WireMap& map, std::string_view key);

// Every element as a double, in row-major order: numbers, booleans, numeric arrays of any type and byte order, and
// lists of numbers, nested or not. Throws Error(kBadInput) naming `key` if there is anything else.
std::vector<double> to_numbers(const WireValue& value, std::string_view key);

// The shape of a number (), list or numeric array; throws Error(kBadInput) naming `key` for a ragged list.
std::vector<int64_t> shape_of(const WireValue& value, std::string_view key);

// Text given as str, UTF-8 bytes, or an array of one element of kind U or S. Throws Error(kBadInput) naming `key`.
std::string to_text(const WireValue& value, std::string_view key);

}  // namespace tendon
