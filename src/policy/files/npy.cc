#include "policy/files/npy.h"

#include <fmt/ranges.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/check.h"
#include "policy/files/file.h"

namespace tendon {
namespace {

static_assert(std::endian::native == std::endian::little, "npy values are copied as they lie");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxNpyBytes = size_t{1} << 30;
constexpr size_t kMaxRank = 32;
constexpr size_t kHeaderAlignment = 64;

[[noreturn]] void throw_header(std::string_view name, std::string_view header) {
  throw_bad_input("'{}' has a .npy header that cannot be read: {}. Save the array again with numpy.save.", name,
                  header.substr(0, 120));
}

// The text after "'key':" in the header's dict literal, from the first non-blank.
std::string_view header_value(std::string_view header, std::string_view key, std::string_view name) {
  const size_t at = header.find(fmt::format("'{}':", key));
  if (at == std::string_view::npos) throw_header(name, header);
  const size_t begin = header.find_first_not_of(' ', at + key.size() + 3);
  if (begin == std::string_view::npos) throw_header(name, header);
  return header.substr(begin);
}

std::vector<int64_t> parse_shape(std::string_view text, std::string_view header, std::string_view name) {
  const size_t end = text.find(')');
  if (!text.starts_with('(') || end == std::string_view::npos) throw_header(name, header);
  text = text.substr(1, end - 1);
  std::vector<int64_t> shape;
  while (text.find_first_not_of(" ,") != std::string_view::npos) {
    text.remove_prefix(text.find_first_not_of(' '));
    int64_t dim = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), dim);
    if (result.ec != std::errc{} || dim < 0 || shape.size() == kMaxRank) throw_header(name, header);
    shape.push_back(dim);
    text.remove_prefix(static_cast<size_t>(result.ptr - text.data()));
    if (text.starts_with(',')) {
      text.remove_prefix(1);
    } else if (!text.empty()) {
      throw_header(name, header);
    }
  }
  return shape;
}

// Little-endian unsigned number of `count` bytes.
size_t read_length(std::span<const std::byte> bytes, size_t at, size_t count) {
  size_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= static_cast<size_t>(bytes[at + i]) << (8 * i);
  return value;
}

template <class T>
std::vector<double> read_values(std::span<const std::byte> data) {
  std::vector<double> values(data.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<double>(value);
  }
  return values;
}

template <class T>
void write_values(const std::string& path, std::span<const int64_t> shape, std::span<const T> values,
                  std::string_view dtype) {
  int64_t elements = 1;
  for (const int64_t dim : shape) elements *= dim;
  TENDON_CHECK(elements == static_cast<int64_t>(values.size()), "{} values for shape {}", values.size(),
               npy_shape_text(shape));
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", dtype, npy_shape_text(shape));
  const size_t preamble = kMagic.size() + 4;
  header.append(kHeaderAlignment - (preamble + header.size() + 1) % kHeaderAlignment, ' ');
  header += '\n';
  std::string start(kMagic);
  start += {'\x01', '\x00', static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream << start << header;
  stream.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size_bytes()));
  stream.close();
  if (!stream) {
    throw_bad_input("cannot write '{}'. Check that the folder exists, may be written and has space.", path);
  }
}

}  // namespace

std::string npy_shape_text(std::span<const int64_t> shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

NpyArray parse_npy(std::span<const std::byte> bytes, std::string_view name) {
  if (bytes.size() < 10 || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    throw_bad_input("'{}' is not a .npy file. Save one array with numpy.save.", name);
  }
  const auto major = static_cast<unsigned>(bytes[6]);
  if (major != 1 && major != 2) {
    throw_bad_input("'{}' is a .npy file of version {}; versions 1 and 2 are supported. Save it with numpy.save.", name,
                    major);
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t header_begin = 8 + length_bytes;
  if (bytes.size() < header_begin || read_length(bytes, 8, length_bytes) > bytes.size() - header_begin) {
    throw_bad_input("'{}' is truncated: it ends inside the .npy header. Copy or save it again.", name);
  }
  const size_t header_bytes = read_length(bytes, 8, length_bytes);
  const std::string_view header(reinterpret_cast<const char*>(bytes.data()) + header_begin, header_bytes);

  const std::string_view descr = header_value(header, "descr", name);
  const std::string_view dtype =
      descr.starts_with('\'') ? descr.substr(1, descr.substr(1).find('\'')) : descr.substr(0, 40);
  NpyArray array;
  array.is_f64 = dtype == "<f8";
  array.shape = parse_shape(header_value(header, "shape", name), header, name);
  if (!array.is_f64 && dtype != "<f4") {
    throw_bad_input("'{}' holds dtype {} of shape {}; <f4 or <f8 is needed. Convert it: array.astype('<f4').", name,
                    dtype, npy_shape_text(array.shape));
  }
  if (!header_value(header, "fortran_order", name).starts_with("False")) {
    throw_bad_input(
        "'{}', shape {}, is stored in Fortran order; C order is needed. Save numpy.ascontiguousarray(array).", name,
        npy_shape_text(array.shape));
  }

  const size_t value_bytes = array.is_f64 ? 8 : 4;
  const auto data = bytes.subspan(header_begin + header_bytes);
  size_t wanted = value_bytes;
  bool fits = true;
  for (const int64_t dim : array.shape) {
    fits = fits && !__builtin_mul_overflow(wanted, static_cast<size_t>(dim), &wanted);
  }
  if (!fits || wanted != data.size()) {
    throw_bad_input("'{}' has dtype {} and shape {}, which does not fit its {} bytes of data. Copy or save it again.",
                    name, dtype, npy_shape_text(array.shape), data.size());
  }
  array.values = array.is_f64 ? read_values<double>(data) : read_values<float>(data);
  return array;
}

NpyArray read_npy(const std::string& path) {
  const std::string content = read_small_file(path, kMaxNpyBytes, ".npy file");
  return parse_npy(std::as_bytes(std::span(content.data(), content.size())), path);
}

std::vector<float> read_noise(const std::string& path, int horizon, int action_dim) {
  const NpyArray array = read_npy(path);
  const std::vector<int64_t> wanted = {horizon, action_dim};
  const std::vector<int64_t> batched = {1, horizon, action_dim};
  if (array.shape != wanted && array.shape != batched) {
    throw_bad_input("noise '{}' has shape {}; this model takes {} or {} (horizon, action dim).", path,
                    npy_shape_text(array.shape), npy_shape_text(wanted), npy_shape_text(batched));
  }
  std::vector<float> noise;
  noise.reserve(array.values.size());
  for (const double value : array.values) {
    noise.push_back(static_cast<float>(value));
    if (!std::isfinite(noise.back())) {
      throw_bad_input("noise '{}': element {} (flat index) is {} as a 32-bit float; every element must be finite.",
                      path, noise.size() - 1, noise.back());
    }
  }
  return noise;
}

void write_npy(const std::string& path, std::span<const int64_t> shape, std::span<const float> values) {
  write_values(path, shape, values, "<f4");
}

void write_npy(const std::string& path, std::span<const int64_t> shape, std::span<const double> values) {
  write_values(path, shape, values, "<f8");
}

}  // namespace tendon
