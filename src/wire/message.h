// msgpack with NumPy arrays, as openpi's clients and servers exchange it.
//
// Two dialects are read, with keys as bin or str:
//   openpi-client:  {__ndarray__: true, data: bin, dtype: "<f4", shape: [..]}, {__npgeneric__: true, data: 1.5, dtype:
//   ..} msgpack-numpy:  {nd: true, type: "<f4", kind: "", shape: [..], data: bin}, {nd: false, type: .., data: bin}
// Only the first is written, with its marker keys as bin. Source: openpi_client/msgpack_numpy.py, msgpack_numpy.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "wire/value.h"

namespace tendon {

struct WireLimits {
  size_t max_depth = 16;      // nested maps and lists
  size_t max_values = 65536;  // numbers, texts and containers in all; an array counts as a few
};

// The one object that `message` holds. Throws Error(kBadInput): not msgpack, cut short, bytes after the object, a map
// key that is neither text nor bytes, an array without enough data or of an element type that is not supported
// (object, structured, complex, dates), an extension type, or more than the limits. Extra bytes in an array's data are
// ignored, as NumPy does.
WireValue decode_message(std::span<const std::byte> message, const WireLimits& limits = {});

// What is whole of a message of which `begun` has come so far: maps without the entries that are still to come. An
// array that is not whole is a map. Throws as decode_message does, but for a message that is cut short.
WireValue decode_begun(std::span<const std::byte> begun, const WireLimits& limits = {});

// Writes a message piece by piece; the caller keeps to the counts that it announces.
class WireWriter {
 public:
  WireWriter& map(size_t entries);
  WireWriter& list(size_t items);
  WireWriter& text(std::string_view value);  // also the key of an entry
  WireWriter& bytes(std::span<const std::byte> value);
  WireWriter& number(double value);  // always as float64
  WireWriter& integer(int64_t value);
  WireWriter& boolean(bool value);
  // `dtype` as NumPy's dtype.str, little-endian; `data` row-major.
  WireWriter& array(std::string_view dtype, std::span<const int64_t> shape, std::span<const std::byte> data);
  WireWriter& array(std::span<const int64_t> shape, std::span<const double> values) {
    return array("<f8", shape, std::as_bytes(values));
  }

  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

}  // namespace tendon
