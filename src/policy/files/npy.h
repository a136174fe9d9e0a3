// NumPy .npy files of float numbers: initial noise in, action chunks out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tendon {

struct NpyArray {
  std::vector<int64_t> shape;  // empty for a single number
  bool is_f64 = false;         // stored as <f8, else <f4
  std::vector<double> values;  // row-major; exact for both types
};

// "(50, 32)", "(7,)", "()"
std::string npy_shape_text(std::span<const int64_t> shape);

// Format version 1 or 2, dtype <f4 or <f8, C order. Throws kBadInput naming the file and the dtype, order or shape
// found otherwise, and if the data is shorter or longer than the shape says. `name` is used in messages only.
// Source: numpy.lib.format.
NpyArray parse_npy(std::span<const std::byte> bytes, std::string_view name);
NpyArray read_npy(const std::string& path);

// Initial noise for one call: shape (horizon, action_dim) or (1, horizon, action_dim), all finite. Row-major f32.
// Throws kBadInput with the shapes, or with the index of a NaN or infinity.
std::vector<float> read_noise(const std::string& path, int horizon, int action_dim);

// Version 1 file in C order, <f4 or <f8. Throws kBadInput if the file cannot be written.
void write_npy(const std::string& path, std::span<const int64_t> shape, std::span<const float> values);
void write_npy(const std::string& path, std::span<const int64_t> shape, std::span<const double> values);

}  // namespace tendon
