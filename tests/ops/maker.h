// How cases are made: fills, tensors on made-up buffers, the list.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "values.h"

namespace tendon::op_check {

inline constexpr DType kF32 = DType::kF32;
inline constexpr DType kBf16 = DType::kBf16;
inline constexpr DType kI32 = DType::kI32;
inline constexpr DType kU8 = DType::kU8;
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

inline Fill normal(double scale = 1.0) {
  return [scale](Random& random, int64_t) { return scale * random.normal(); };
}
inline Fill integers(int64_t begin, int64_t end) {
  return [=](Random& random, int64_t) { return random.integer(begin, end); };
}
inline Fill listed(std::vector<double> values) {
  return [values = std::move(values)](Random&, int64_t i) { return values[static_cast<size_t>(i)]; };
}
inline Fill counting(int64_t first) {
  return [=](Random&, int64_t i) { return static_cast<double>(first + i); };
}

// Declares buffers and hands out tensors on them. With a margin, matrices are views into wider buffers.
class Maker {
 public:
  explicit Maker(int64_t margin = 0) : margin_(margin) {}

  Tensor data(DType dtype, const Shape& shape, Fill fill) { return declare(dtype, shape, std::move(fill)); }
  Tensor data(DType dtype, const Shape& shape, double scale = 1.0) { return declare(dtype, shape, normal(scale)); }
  Tensor out(DType dtype, const Shape& shape) { return declare(dtype, shape, {}); }
  // Without a margin even when the others have one: weights, vectors, indices.
  Tensor plain(DType dtype, const Shape& shape, Fill fill) {
    const int64_t margin = std::exchange(margin_, 0);
    Tensor tensor = declare(dtype, shape, std::move(fill));
    margin_ = margin;
    return tensor;
  }
  Tensor weight(DType dtype, int64_t n, int64_t k) {
    return plain(dtype, {n, k}, normal(1.0 / std::sqrt(static_cast<double>(k))));
  }
  Tensor vector(int64_t n, double scale = 0.5) { return plain(kF32, {n}, normal(scale)); }

  // Records operations on the buffers so far: record(recorder). What they need in between becomes loose buffers.
  template <class Record>
  std::vector<Op> record(const Record& record) {
    std::vector<Value> values;
    for (const Buffer& buffer : buffers_) values.push_back(buffer.value);
    Recorder recorder(std::move(values));
    record(recorder);
    for (size_t i = buffers_.size(); i < recorder.values().size(); ++i) {
      buffers_.push_back({.value = recorder.values()[i], .fill = {}, .loose = true});
    }
    return recorder.ops();
  }
  void let_loose(const Tensor& tensor) { buffers_[static_cast<size_t>(tensor.value)].loose = true; }

  template <class Args>
  Case make(std::string name, Args args) {
    Case made{.name = fmt::format("{}.{}", Args::kName, name), .buffers = buffers_, .op = {std::move(args), "test"}};
    validate(made.op);
    return made;
  }

 private:
  Tensor declare(DType dtype, const Shape& shape, Fill fill) {
    const bool views = margin_ > 0 && shape.rank() >= 2;
    Shape wide;
    for (int axis = 0; axis + 1 < shape.rank(); ++axis) wide.push_back(shape[axis]);
    wide.push_back(shape[-1] + (views ? 2 * margin_ + 3 : 0));
    Tensor tensor(dtype, wide);
    tensor.value = static_cast<int32_t>(buffers_.size());
    buffers_.push_back({{fmt::format("buffer {}", buffers_.size()), dtype, wide, Value::Kind::kKept}, std::move(fill)});
    return views ? tensor.col_range(margin_, shape[-1]) : tensor;
  }

  int64_t margin_;
  std::vector<Buffer> buffers_;
};

struct MatrixShape {
  const char* name;
  int64_t rows, cols;
  bool real;
  int64_t margin = 0;
};
// Of a product: x (m, k), w (n, k), out (m, n).
struct ProductShape {
  const char* name;
  int64_t m, n, k, margin;
};

inline const char* type_word(DType dtype) { return dtype == kBf16 ? "bf16" : "f32"; }

// residual + (x · wᵀ + bias), the product gated or not.
inline Case residual_case(const std::string& name, const ProductShape& s, DType rows, DType dtype, DType weights,
                          bool gated) {
  Maker m(s.margin);
  LinearResidual a{.x = m.data(rows, {s.m, s.k}),
                   .w = m.weight(weights, s.n, s.k),
                   .bias = m.vector(s.n),
                   .residual = m.data(dtype, {s.m, s.n}),
                   .gate = {},
                   .out = {}};
  if (gated) a.gate = m.vector(s.n);
  a.out = m.out(dtype, {s.m, s.n});
  return m.make((gated ? "gated_" : "") + name, a);
}

// A norm, then a product and what follows it; out is undefined.
inline LayerNormLinear normed_linear(Maker& m, const ProductShape& s, DType dtype, DType weights,
                                     Activation activation) {
  return {.x = m.data(dtype, {s.m, s.k}),
          .gain = m.vector(s.k),
          .bias = m.vector(s.k),
          .w = m.weight(weights, s.n, s.k),
          .linear_bias = m.vector(s.n),
          .out = {},
          .activation = activation};
}
inline NormGateUpGelu normed_gate_up(Maker& m, const ProductShape& s, DType dtype, DType weights) {
  return {.x = m.data(dtype, {s.m, s.k}),
          .norm = {.gain = m.vector(s.k), .scale = {}, .shift = {}},
          .w_gate = m.weight(weights, s.n, s.k),
          .w_up = m.weight(weights, s.n, s.k),
          .out = {}};
}

class List {
 public:
  // `bench`: also timed by `op_check bench`.
  Case& add(Case made) {
    cases_.push_back(std::move(made));
    return cases_.back();
  }
  void add_bench(Case made) { add(std::move(made)).bench = true; }
  std::vector<Case> take() { return std::move(cases_); }

 private:
  std::vector<Case> cases_;
};

}  // namespace tendon::op_check
