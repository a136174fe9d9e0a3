#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "ops/frame.h"

namespace tendon::op_check {

void OracleBuffer::set(int64_t index, double number, double bound, State state) {
  if (number_.empty()) {
    const int64_t count = value_.shape.elements();
    std::vector<double> numbers(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) numbers[static_cast<size_t>(i)] = decode(value_, initial_->data(), i);
    number_ = std::move(numbers);
    bound_.assign(static_cast<size_t>(count), 0.0);
    state_.assign(static_cast<size_t>(count), kUntouched);
  }
  number_[static_cast<size_t>(index)] = number;
  bound_[static_cast<size_t>(index)] = bound;
  state_[static_cast<size_t>(index)] = state;
}

namespace {

constexpr double kF32Unit = 0x1p-24;
constexpr double kElementwise = 8;  // a handful of f32 operations on each element
constexpr double kLinear = 8;       // sums of products; one chain of 1152 additions was seen to need 4.4
// Of sums of e4m3 products, in place of kLinear · kF32Unit: Hopper's tensor cores keep 13 bits behind the leading one.
constexpr double kE4m3Sum = 0x1p-12;
constexpr double kIndependent = 3;  // standard deviations of a sum of independent errors
constexpr double kActivation = 16;  // exp, division and the polynomial of the activations
constexpr double kTiny = 1e-36;     // results below the f32 normal range may be flushed to zero

double square(double x) { return x * x; }

// One element with its error bound.
struct Number {
  double value = 0, bound = 0;
};

class Matrix {
 public:
  Matrix(std::vector<OracleBuffer>& buffers, const Tensor& tensor)
      : tensor_(tensor), buffer_(tensor.defined() ? &buffers[static_cast<size_t>(tensor.value)] : nullptr) {}

  bool defined() const { return buffer_ != nullptr; }
  int64_t rows() const { return tensor_.rows(); }
  int64_t cols() const { return tensor_.cols(); }
  Number at(int64_t row, int64_t col) const {
    const int64_t i = index(row, col);
    return {buffer_->number(i), buffer_->bound(i)};
  }
  double value(int64_t row, int64_t col) const { return buffer_->number(index(row, col)); }
  int64_t integer(int64_t i) const { return static_cast<int64_t>(buffer_->number(index(0, 0) + i)); }
  bool whole() const { return buffer_->whole; }
  DType dtype() const { return tensor_.dtype; }
  double unit() const { return unit_roundoff(tensor_.dtype); }
  // `value` rounded to this type, for formulas with inner roundings.
  double rounded(double value) const {
    return tensor_.dtype == DType::kBf16 ? static_cast<double>(round_to_bf16(static_cast<float>(value))) : value;
  }

  // Stores a result whose arithmetic may be off by `error`.
  void store(int64_t row, int64_t col, double value, double error) {
    const double stored = to_type(value);
    double bound = 0;
    if (error > 0) {
      bound = std::max(to_type(value + error) - stored, stored - to_type(value - error)) + kTiny;
      if (buffer_->in_chain) bound += unit() * std::fabs(value);
    }
    buffer_->set(index(row, col), stored, bound, OracleBuffer::kComputed);
  }
  void copy(int64_t row, int64_t col, const Number& number) {
    buffer_->set(index(row, col), number.value, number.bound, OracleBuffer::kComputed);
  }
  // A sample of a huge product left it out: what is computed from it is left out as well.
  bool unchecked(int64_t row, int64_t col) const { return buffer_->state(index(row, col)) == OracleBuffer::kUnchecked; }
  void leave_unchecked(int64_t row, int64_t col) { buffer_->set(index(row, col), 0, 0, OracleBuffer::kUnchecked); }

  std::vector<double> row_values(int64_t row) const {
    std::vector<double> values(static_cast<size_t>(cols()));
    for (int64_t col = 0; col < cols(); ++col) values[static_cast<size_t>(col)] = value(row, col);
    return values;
  }
  std::vector<double> row_bounds(int64_t row) const {
    std::vector<double> bounds(static_cast<size_t>(cols()));
    for (int64_t col = 0; col < cols(); ++col) bounds[static_cast<size_t>(col)] = at(row, col).bound;
    return bounds;
  }

 private:
  double to_type(double value) const {
    const auto narrowed = static_cast<float>(value);
    return static_cast<double>(tensor_.dtype == DType::kBf16 ? round_to_bf16(narrowed) : narrowed);
  }
  int64_t index(int64_t row, int64_t col) const {
    const int64_t i = tensor_.value_offset + row * tensor_.row_stride + col;
    TENDON_CHECK(i >= 0 && i < buffer_->value().shape.elements(), "test case reads outside its buffer");
    return i;
  }
  Tensor tensor_;
  OracleBuffer* buffer_;
};

using Buffers = std::vector<OracleBuffer>;

double gelu_tanh(double x) {
  const double u = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
  return x / (1.0 + std::exp(-2.0 * u));  // = ½x(1 + tanh u) without its cancellation
}
double silu(double x) { return x / (1.0 + std::exp(-x)); }

// An error δ in the argument of an activation grows by at most 1.13; its own arithmetic is c · u32 · (|x| + |f|), for
// the exponential sees the rounding of an argument of size x (GELU: of x³, but there the result vanishes).
Number activated(Activation activation, const Number& x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kGeluTanh: {
      const double f = gelu_tanh(x.value);
      return {f, 1.13 * x.bound + kActivation * kF32Unit * std::fabs(f) * (1.0 + square(x.value)) + kTiny};
    }
    case Activation::kSilu: {
      const double f = silu(x.value);
      return {f, 1.13 * x.bound + kActivation * kF32Unit * std::fabs(f) * (1.0 + std::fabs(x.value)) + kTiny};
    }
  }
  return x;
}

// Of one frame, in 64 bits.
class FrameOracle {
 public:
  FrameOracle(const Matrix& pool, int64_t number, int64_t side) : side_(side) {
    for (int64_t row = number; row < pool.rows(); ++row) {
      for (int64_t i = 0; i < kFrameAlignment; ++i)
        bytes_.push_back(static_cast<std::byte>(static_cast<uint8_t>(pool.value(row, i))));
    }
    std::memcpy(&header_, bytes_.data(), sizeof(header_));
  }
  int64_t pixel(int64_t y, int64_t x, int64_t channel) const {
    const FrameParts<const std::byte> parts(bytes_.data(), header_, side_);
    int64_t sum = int64_t{1} << (kFrameFractionBits - 1);
    for (int64_t p = 0; p < header_.y_taps; ++p) {
      if (const int64_t weight = parts.y_weights[p * side_ + y]; weight != 0)
        sum += weight * scaled(parts, parts.y_first[y] + p, x, channel);
    }
    return std::min<int64_t>(sum >> kFrameFractionBits, 255);
  }

 private:
  int64_t scaled(const FrameParts<const std::byte>& parts, int64_t row, int64_t x, int64_t channel) const {
    int64_t sum = int64_t{1} << (kFrameFractionBits - 1);
    for (int64_t p = 0; p < header_.x_taps; ++p) {
      const int64_t weight = parts.x_weights[p * side_ + x];
      if (weight == 0) continue;
      const int64_t column = parts.x_first[x] + p;
      const int64_t at = header_.planar != 0 ? (channel * header_.height + row) * header_.width + column
                                             : (row * header_.width + column) * 3 + channel;
      sum += weight * parts.pixels[at];
    }
    return std::min<int64_t>(sum >> kFrameFractionBits, 255);
  }

  int64_t side_;
  std::vector<std::byte> bytes_;
  FrameHeader header_;
};

void compute(const ResizeFrames& a, Buffers& buffers) {
  const Matrix images(buffers, a.images), frames(buffers, a.frames), pool(buffers, a.pool);
  Matrix out(buffers, a.out);
  const int64_t side = a.out.shape[1];
  for (int64_t i = 0; i < a.out.shape[0]; ++i) {
    const int64_t number = frames.integer(i);
    std::optional<FrameOracle> frame;
    if (number != 0) frame.emplace(pool, number, side);
    for (int64_t pixel = 0; pixel < side * side; ++pixel) {
      const int64_t row = i * side * side + pixel;
      for (int64_t c = 0; c < 3; ++c) {
        const double value =
            frame ? static_cast<double>(frame->pixel(pixel / side, pixel % side, c)) : images.value(row, c);
        out.store(row, c, value, 0);
      }
    }
  }
}

void compute(const Patchify& a, Buffers& buffers) {
  const Matrix images(buffers, a.images);
  Matrix out(buffers, a.out);
  const int64_t height = a.images.shape[1];
  const int64_t width = a.images.shape[2];
  const int64_t patch = a.patch;
  int64_t token = 0;
  for (int64_t n = 0; n < a.images.shape[0]; ++n) {
    for (int64_t r = 0; r < height / patch; ++r) {
      for (int64_t c = 0; c < width / patch; ++c, ++token) {
        int64_t col = 0;
        for (int64_t channel = 0; channel < 3; ++channel) {
          for (int64_t i = 0; i < patch; ++i) {
            for (int64_t j = 0; j < patch; ++j, ++col) {
              const double v = images.value((n * height + patch * r + i) * width + patch * c + j, channel);
              if (a.images.dtype == DType::kU8) {
                out.store(token, col, v / 255.0 * 2.0 - 1.0, kElementwise * kF32Unit);
              } else {
                out.store(token, col, v, 0.0);
              }
            }
          }
        }
      }
    }
  }
}

void compute(const Linear& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), w(buffers, a.w), bias(buffers, a.bias);
  Matrix out(buffers, a.out);
  const int64_t m = x.rows();
  const int64_t n = w.rows();
  const int64_t k = w.cols();
  // Of a huge product every column is computed for some rows, and the others must be finite.
  const double most_products = out.whole() ? INFINITY : 6e7;
  const double row_products = static_cast<double>(n) * static_cast<double>(k);
  const int64_t row_step =
      std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(m) * row_products / most_products));
  const int64_t col_step = std::max<int64_t>(1, static_cast<int64_t>(3 * row_products / most_products));
  std::vector<std::vector<double>> x_rows(static_cast<size_t>(m));
  std::vector<std::vector<double>> x_bounds(static_cast<size_t>(m));
  const double unit = a.w.dtype == DType::kE4m3 ? kE4m3Sum : kLinear * kF32Unit;
  const bool inexact_x = m > 0 && k > 0 && (x.at(0, 0).bound > 0 || x.at(m - 1, k - 1).bound > 0);
  std::vector<uint8_t> chosen(static_cast<size_t>(m));
  for (int64_t row = 0; row < m; ++row) {
    chosen[static_cast<size_t>(row)] = row % row_step == 0 || row == m - 1;
    if (chosen[static_cast<size_t>(row)] == 0) continue;
    x_rows[static_cast<size_t>(row)] = x.row_values(row);
    if (inexact_x) x_bounds[static_cast<size_t>(row)] = x.row_bounds(row);
  }
  for (int64_t col = 0; col < n; ++col) {
    const bool chosen_col = col % col_step == 0 || col >= n - 3;
    const std::vector<double> w_row = chosen_col ? w.row_values(col) : std::vector<double>();
    for (int64_t row = 0; row < m; ++row) {
      if (!chosen_col || chosen[static_cast<size_t>(row)] == 0) {
        out.leave_unchecked(row, col);
        continue;
      }
      const std::vector<double>& x_row = x_rows[static_cast<size_t>(row)];
      const std::vector<double>& x_bound = x_bounds[static_cast<size_t>(row)];
      double total = bias.defined() ? bias.value(0, col) : 0.0;
      double sizes = std::fabs(total);
      double squares = 0;
      for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
        const double product = x_row[i] * w_row[i];
        total += product;
        sizes += std::fabs(product);
        if (inexact_x) squares += square(w_row[i] * x_bound[i]);
      }
      const Number result = activated(a.activation, {total, unit * sizes + kIndependent * std::sqrt(squares)});
      out.store(row, col, result.value, result.bound);
    }
  }
}

void compute(const AddRows& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), table(buffers, a.table);
  Matrix out(buffers, a.out);
  for (int64_t row = 0; row < x.rows(); ++row) {
    for (int64_t col = 0; col < x.cols(); ++col) {
      if (x.unchecked(row, col)) {
        out.leave_unchecked(row, col);
        continue;
      }
      const Number l = x.at(row, col);
      const double r = table.value(row % table.rows(), col);
      out.store(row, col, l.value + r, l.bound + kF32Unit * std::fabs(l.value + r));
    }
  }
}

void compute(const LayerNorm& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), gain(buffers, a.gain), bias(buffers, a.bias);
  Matrix out(buffers, a.out);
  const auto width = static_cast<double>(x.cols());
  for (int64_t row = 0; row < x.rows(); ++row) {
    double mean = 0;
    for (int64_t col = 0; col < x.cols(); ++col) mean += x.value(row, col) / width;
    double variance = 0;
    double spread = 0;
    for (int64_t col = 0; col < x.cols(); ++col) {
      variance += square(x.value(row, col) - mean) / width;
      spread = std::max(spread, x.at(row, col).bound);
    }
    const double inverse = 1.0 / std::sqrt(variance + static_cast<double>(a.eps));
    for (int64_t col = 0; col < x.cols(); ++col) {
      const Number v = x.at(row, col);
      const double g = gain.value(0, col);
      const double centred = (v.value - mean) * inverse;
      const double result = centred * g + bias.value(0, col);
      const double sizes =
          (std::fabs(v.value) + std::fabs(mean)) * inverse * std::fabs(g) + std::fabs(bias.value(0, col));
      const double inherited = std::fabs(g) * inverse * (v.bound + spread * (1.0 + std::fabs(centred)));
      out.store(row, col, result, kElementwise * kF32Unit * sizes + inherited);
    }
  }
}

// scale(col) and shift(col) cover both forms of the norm.
template <class Scale, class Shift>
void rms_norm(const Matrix& x, Matrix& out, float eps, const Scale& scale, const Shift& shift) {
  const auto width = static_cast<double>(x.cols());
  for (int64_t row = 0; row < x.rows(); ++row) {
    double mean_square = 0;
    double spread = 0;
    for (int64_t col = 0; col < x.cols(); ++col) {
      mean_square += square(x.value(row, col)) / width;
      spread = std::max(spread, x.at(row, col).bound);
    }
    const double inverse = 1.0 / std::sqrt(mean_square + static_cast<double>(eps));
    for (int64_t col = 0; col < x.cols(); ++col) {
      const Number v = x.at(row, col);
      const double product = v.value * inverse * scale(col);
      const double sizes = std::fabs(product) + std::fabs(v.value * inverse) + std::fabs(shift(col));
      const double inherited = std::fabs(scale(col)) * inverse * (v.bound + spread * std::fabs(v.value * inverse));
      out.store(row, col, product + shift(col), kElementwise * kF32Unit * sizes + inherited);
    }
  }
}

void compute(const RmsNorm& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), gain(buffers, a.gain);
  Matrix out(buffers, a.out);
  rms_norm(
      x, out, a.eps, [&](int64_t col) { return 1.0 + gain.value(0, col); }, [](int64_t) { return 0.0; });
}

void compute(const AdaRmsNorm& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), scale(buffers, a.scale), shift(buffers, a.shift);
  Matrix out(buffers, a.out);
  rms_norm(
      x, out, a.eps, [&](int64_t col) { return 1.0 + scale.value(0, col); },
      [&](int64_t col) { return shift.value(0, col); });
}

void compute(const Rope& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), positions(buffers, a.positions), table(buffers, a.table);
  Matrix out(buffers, a.out);
  const int64_t dim = table.cols();
  const int64_t half = dim / 2;
  for (int64_t row = 0; row < x.rows(); ++row) {
    const int64_t position = positions.integer(row);
    for (int64_t head = 0; head < x.cols(); head += dim) {
      for (int64_t i = 0; i < half; ++i) {
        if (x.unchecked(row, head + i) || x.unchecked(row, head + half + i)) {
          out.leave_unchecked(row, head + i);
          out.leave_unchecked(row, head + half + i);
          continue;
        }
        const double c = table.value(position, i);
        const double s = table.value(position, half + i);
        const Number low = x.at(row, head + i);
        const Number high = x.at(row, head + half + i);
        const auto error = [&](double p, double q, double p_bound, double q_bound) {
          return kElementwise * kF32Unit * (std::fabs(p) + std::fabs(q)) + p_bound + q_bound;
        };
        out.store(row, head + i, low.value * c - high.value * s,
                  error(low.value * c, high.value * s, low.bound * std::fabs(c), high.bound * std::fabs(s)));
        out.store(row, head + half + i, high.value * c + low.value * s,
                  error(high.value * c, low.value * s, high.bound * std::fabs(c), low.bound * std::fabs(s)));
      }
    }
  }
}

void compute(const ScatterRows& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), rows(buffers, a.rows);
  Matrix out(buffers, a.out);
  for (int64_t row = 0; row < x.rows(); ++row) {
    const int64_t target = rows.integer(row);
    if (target < 0) continue;
    for (int64_t col = 0; col < x.cols(); ++col) {
      if (x.unchecked(row, col)) {
        out.leave_unchecked(target, col);
      } else {
        out.copy(target, col, x.at(row, col));
      }
    }
  }
}

void compute(const GatherRows& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), rows(buffers, a.rows);
  Matrix out(buffers, a.out);
  for (int64_t row = 0; row < out.rows(); ++row) {
    for (int64_t col = 0; col < out.cols(); ++col) out.copy(row, col, x.at(rows.integer(row), col));
  }
}

// The logits carry an error e = c · u32 · scale · Σ|q||k|; p then has the relative error 2e and so the result
// Σ p|v| · (2e + c · u32). A backend may round p to q's type before the second product: + 3 · u · √(Σ (p v)²) for bf16.
// Bounds of the inputs are errors of independent elements: of q and k they add 3 · scale · √(Σ (q δk)² + (k δq)²) to
// the logits, of v 3 · √(Σ (p δv)²) to the result.
void compute(const Attention& a, Buffers& buffers) {
  const Matrix q(buffers, a.q), k(buffers, a.k), v(buffers, a.v), key_len(buffers, a.key_len),
      mask(buffers, a.key_mask);
  Matrix out(buffers, a.out);
  const int64_t queries = a.q.shape[1];
  const int64_t capacity = a.k.shape[1];
  const int64_t dim = q.cols() / a.heads;
  const int64_t group = a.heads / a.kv_heads;
  // Of a large attention every few query rows are computed, every row elsewhere.
  const double products = static_cast<double>(q.rows() * q.cols() * capacity) * 2;
  const int64_t step = out.whole() ? 1 : std::max<int64_t>(1, static_cast<int64_t>(products / 8e7));
  std::vector<double> weights, logit_errors;
  for (int64_t row = 0; row < q.rows(); ++row) {
    const int64_t sample = row / queries;
    const int64_t query = row % queries;
    if (row % step != 0 && row != q.rows() - 1) {
      for (int64_t col = 0; col < q.cols(); ++col) out.leave_unchecked(row, col);
      continue;
    }
    const int64_t extra = query < a.leading_block ? a.leading_block : a.extra_keys;
    const int64_t visible = key_len.defined() ? key_len.integer(sample) + extra : capacity;
    std::vector<int64_t> keys;
    for (int64_t j = 0; j < std::min(visible, capacity); ++j) {
      if (!mask.defined() || mask.value(sample, j) != 0) keys.push_back(j);
    }
    const std::vector<double> q_row = q.row_values(row);
    for (int64_t head = 0; head < a.heads; ++head) {
      const int64_t kv_col = head / group * dim;
      weights.assign(keys.size(), 0.0);
      double worst = 0;
      double top = -INFINITY;
      for (size_t j = 0; j < keys.size(); ++j) {
        double logit = 0;
        double sizes = 0;
        double squares = 0;
        for (int64_t d = 0; d < dim; ++d) {
          const double q_value = q_row[static_cast<size_t>(head * dim + d)];
          const Number key = k.at(sample * capacity + keys[j], kv_col + d);
          const double product = q_value * key.value;
          logit += product;
          sizes += std::fabs(product);
          squares += square(q_value * key.bound) + square(key.value * q.at(row, head * dim + d).bound);
        }
        const double scale = std::fabs(static_cast<double>(a.scale));
        weights[j] = logit * static_cast<double>(a.scale);
        top = std::max(top, weights[j]);
        worst = std::max(worst, scale * (kLinear * kF32Unit * sizes + kIndependent * std::sqrt(squares)));
      }
      double total = 0;
      for (double& weight : weights) total += weight = std::exp(weight - top);
      for (int64_t d = 0; d < dim; ++d) {
        double result = 0;
        double sizes = 0;
        double squares = 0;
        for (size_t j = 0; j < keys.size(); ++j) {
          const Number value = v.at(sample * capacity + keys[j], kv_col + d);
          const double p = weights[j] / total;
          const double term = p * value.value;
          result += term;
          sizes += std::fabs(term);
          squares += square(q.unit() * term) + square(p * value.bound);
        }
        const double inherited = kIndependent * std::sqrt(squares);
        out.store(row, head * dim + d, result, sizes * (2 * worst + kActivation * kF32Unit) + inherited);
      }
    }
  }
}

void compute(const ResidualAdd& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), y(buffers, a.y);
  Matrix out(buffers, a.out);
  for (int64_t row = 0; row < out.rows(); ++row) {
    for (int64_t col = 0; col < out.cols(); ++col) {
      if (x.unchecked(row, col) || y.unchecked(row, col)) {
        out.leave_unchecked(row, col);
        continue;
      }
      const Number l = x.at(row, col);
      const Number r = y.at(row, col);
      const double sum = l.value + r.value;
      out.store(row, col, sum, l.bound + r.bound + kF32Unit * std::fabs(sum));
    }
  }
}

void compute(const GatedResidual& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), y(buffers, a.y), gate(buffers, a.gate);
  Matrix out(buffers, a.out);
  for (int64_t row = 0; row < out.rows(); ++row) {
    for (int64_t col = 0; col < out.cols(); ++col) {
      if (x.unchecked(row, col) || y.unchecked(row, col)) {
        out.leave_unchecked(row, col);
        continue;
      }
      const Number l = x.at(row, col);
      const Number r = y.at(row, col);
      const double g = y.rounded(gate.value(0, col));
      const double product = y.rounded(static_cast<double>(static_cast<float>(r.value * g)));
      // An inexact y may round to a neighbour.
      const double inner = r.bound > 0 ? std::fabs(g) * r.bound + 2 * y.unit() * std::fabs(product) : 0.0;
      const double error = kElementwise * kF32Unit * (std::fabs(l.value) + std::fabs(product));
      out.store(row, col, l.value + product, l.bound + inner + error);
    }
  }
}

void compute(const GeluMul& a, Buffers& buffers) {
  const Matrix gate(buffers, a.gate), up(buffers, a.up);
  Matrix out(buffers, a.out);
  for (int64_t row = 0; row < out.rows(); ++row) {
    for (int64_t col = 0; col < out.cols(); ++col) {
      if (gate.unchecked(row, col) || up.unchecked(row, col)) {
        out.leave_unchecked(row, col);
        continue;
      }
      const Number f = activated(Activation::kGeluTanh, gate.at(row, col));
      const Number u = up.at(row, col);
      const double rounded = gate.rounded(f.value);
      // The exact activation may lie so near to a tie that f32 arithmetic rounds it to the neighbour.
      const bool tie = gate.rounded(f.value - f.bound) != gate.rounded(f.value + f.bound);
      const double inner = f.bound + (tie ? 2 * gate.unit() * std::fabs(f.value) : 0.0);
      out.store(row, col, rounded * u.value,
                inner * std::fabs(u.value) + std::fabs(rounded) * u.bound + kF32Unit * std::fabs(rounded * u.value));
    }
  }
}

void compute(const GatherPrefix& a, Buffers& buffers) {
  const Matrix features(buffers, a.features), embedding(buffers, a.embedding), sources(buffers, a.sources);
  Matrix out(buffers, a.out);
  for (int64_t row = 0; row < out.rows(); ++row) {
    const int64_t source = sources.integer(row);
    for (int64_t col = 0; col < out.cols(); ++col) {
      if (source >= 0) {
        const Number v = features.at(source, col);
        out.store(row, col, v.value, v.bound);
      } else {
        const double v = embedding.value(-1 - source, col) * static_cast<double>(a.scale);
        out.store(row, col, v, kF32Unit * std::fabs(v));
      }
    }
  }
}

void compute(const ConcatRow& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), row(buffers, a.row);
  Matrix out(buffers, a.out);
  for (int64_t r = 0; r < out.rows(); ++r) {
    for (int64_t col = 0; col < out.cols(); ++col) {
      const Number v = col < x.cols() ? x.at(r, col) : row.at(0, col - x.cols());
      out.store(r, col, v.value, v.bound);
    }
  }
}

// What a correct backend may be off by: an input near the middle of two codes may become either. Where the largest
// number of the row is inexact itself, so is the grid of codes, and both roundings count.
void quantize_row(const Matrix& x, const Matrix* factors, bool unit_scale, Matrix& out, int64_t row) {
  const auto factor = [&](int64_t col) { return factors == nullptr ? 1.0 : factors->value(0, col); };
  double largest = 0;
  bool inexact = false;
  for (int64_t col = 0; col < x.cols() && !unit_scale; ++col) {
    largest = std::max(largest, std::fabs(x.value(row, col) * factor(col)));
    inexact = inexact || x.at(row, col).bound > 0;
  }
  const double scale = largest > 0 ? std::max(largest, 0x1p-110) / static_cast<double>(scaled_max(out.dtype())) : 1.0;
  const auto code = [&](double v) {
    const auto scaled = static_cast<float>(v / scale);
    return scale * (out.dtype() == DType::kE4m3 ? static_cast<double>(to_float(to_e4m3(scaled))) : to_i8(scaled));
  };
  for (int64_t col = 0; col < x.cols(); ++col) {
    if (x.unchecked(row, col)) {  // samples leave out whole rows
      out.leave_unchecked(row, col);
      continue;
    }
    const Number v{x.value(row, col) * factor(col), x.at(row, col).bound * std::fabs(factor(col))};
    const double error = v.bound + kElementwise * kF32Unit * std::fabs(v.value);
    const double stored = code(v.value);
    double bound = std::max(code(v.value + error) - stored, stored - code(v.value - error));
    bound += kElementwise * kF32Unit * std::fabs(stored);  // of the scale
    if (inexact) bound += out.dtype() == DType::kI8 ? scale : 2 * out.unit() * std::fabs(v.value) + scale * 0x1p-9;
    out.copy(row, col, {stored, bound});
  }
}

void compute(const Cast& a, Buffers& buffers) {
  const Matrix x(buffers, a.x);
  Matrix out(buffers, a.out);
  if (is_scaled(a.out.dtype)) {
    std::optional<Matrix> factors;
    if (a.factors.defined()) factors.emplace(buffers, a.factors);
    for (int64_t row = 0; row < out.rows(); ++row)
      quantize_row(x, factors ? &*factors : nullptr, a.unit_scales, out, row);
    return;
  }
  for (int64_t row = 0; row < out.rows(); ++row) {
    for (int64_t col = 0; col < out.cols(); ++col) {
      const Number number = x.at(row, col);
      const double scaling = is_scaled(a.x.dtype) ? kF32Unit * std::fabs(number.value) : 0.0;
      out.store(row, col, number.value, number.bound + scaling);
    }
  }
}

void compute(const EulerStep& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), v(buffers, a.v);
  Matrix out(buffers, a.out);
  for (int64_t row = 0; row < out.rows(); ++row) {
    for (int64_t col = 0; col < out.cols(); ++col) {
      const auto dt = static_cast<double>(a.dt);
      const Number l = x.at(row, col);
      const Number velocity = v.at(row, col);
      const double step = dt * velocity.value;
      out.store(row, col, l.value + step,
                2 * kF32Unit * (std::fabs(l.value) + std::fabs(step)) + l.bound + std::fabs(dt) * velocity.bound);
    }
  }
}

void compute(const SelectRows& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), y(buffers, a.y), chosen(buffers, a.chosen);
  Matrix out(buffers, a.out);
  for (int64_t row = 0; row < out.rows(); ++row) {
    const Matrix& source = chosen.integer(row) != 0 ? y : x;
    for (int64_t col = 0; col < out.cols(); ++col)
      out.store(row, col, source.at(row, col).value, source.at(row, col).bound);
  }
}

void compute(const Guidance& a, Buffers& buffers) {
  const Matrix x(buffers, a.x), v(buffers, a.v), target(buffers, a.target), weight(buffers, a.weight);
  Matrix out(buffers, a.out);
  for (int64_t row = 0; row < out.rows(); ++row) {
    for (int64_t col = 0; col < out.cols(); ++col) {
      const Number velocity = v.at(row, col);
      const Number start = x.at(row, col);
      const auto time = static_cast<double>(a.time);
      const double moved = time * velocity.value;
      const double gain = static_cast<double>(a.scale) * weight.value(row, col);
      const double pull = gain * (target.value(row, col) - (start.value - moved));
      const double terms = std::fabs(target.value(row, col)) + std::fabs(start.value) + std::fabs(moved);
      out.store(row, col, velocity.value - pull,
                kF32Unit * (6 * std::fabs(gain) * terms + 2 * std::fabs(velocity.value)) +
                    std::fabs(1 - gain * time) * velocity.bound + std::fabs(gain) * start.bound);
    }
  }
}

template <class Args>
concept Basic = requires(const Args& args, Buffers& buffers) {
  compute(args, buffers);
};

}  // namespace

void Oracle::run(const Op& op) {
  std::visit(
      [&]<class Args>(const Args& args) {
        if constexpr (Basic<Args>) {
          compute(args, buffers_);
        } else {
          throw_bad_use("the oracle knows basic operations only, not {}", op_name(op));
        }
      },
      op.args);
}

}  // namespace tendon::op_check
