#include "denoise_cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "maker.h"

namespace tendon::op_check {
namespace {

struct Network {
  int64_t width, mlp, heads, head_dim, actions;
};
constexpr Network kExpert = {1024, 4096, 8, 256, 32};  // of both published models; the persistent kernels' only one
constexpr Network kNarrow = {64, 144, 2, 32, 8};

enum class Chunking { kNone, kGuided, kInpaint };

struct LoopShape {
  bool adaptive;          // modulated norms; else gains, and a row in front of the actions'
  int64_t horizon, keys;  // action rows; cached keys that are seen
  int64_t layers, steps;
  int64_t unseen = 3;  // cached keys behind those, and behind the loop's own rows: NaN
  Chunking chunking = Chunking::kNone;
  bool codes = false;  // weights that are codes
};

// The loop's operation and, as its parts, the same in small operations.
class Loop {
 public:
  Loop(const Network& network, const LoopShape& shape)
      : net_(network), shape_(shape), leading_(shape.adaptive ? 0 : 1), rows_(shape.horizon + leading_) {}

  Case make(const std::string& name) {
    declare();
    loop_.parts = std::make_shared<const std::vector<Op>>(m_.record([&](Recorder& r) {
      Tensor x = loop_.noise;
      for (int64_t step = 0; step < shape_.steps; ++step) {
        const bool is_last = step + 1 == shape_.steps;
        const Tensor next = is_last && !loop_.frozen.defined() ? loop_.actions : r.temporary(kF32, x.shape);
        r.add(EulerStep{.x = x, .v = guided(r, x, velocity(r, x, step), step), .out = next, .dt = loop_.dt});
        x = loop_.frozen.defined() ? with_given_rows(r, next, step + 1) : next;
      }
    }));
    return m_.make(name, loop_);
  }

 private:
  void declare() {
    const int64_t width = net_.width;
    const int64_t q = net_.heads * net_.head_dim;
    loop_.steps = shape_.steps;
    loop_.weights_are_codes = shape_.codes;
    loop_.dt = -1.0F / static_cast<float>(shape_.steps);
    loop_.scale = 1.0F / std::sqrt(static_cast<float>(net_.head_dim));
    loop_.noise = m_.data(kF32, {shape_.horizon, net_.actions});
    loop_.positions = m_.plain(kI32, {rows_}, counting(shape_.keys));
    loop_.key_len = m_.plain(kI32, {1}, listed({static_cast<double>(shape_.keys)}));
    loop_.rope = m_.plain(kF32, {shape_.keys + rows_, net_.head_dim}, normal(0.7));
    loop_.action_in = m_.weight(kF32, width, net_.actions);
    loop_.action_out = m_.weight(kF32, net_.actions, width);
    loop_.action_out_bias = m_.vector(net_.actions);
    if (shape_.adaptive) {
      loop_.action_in_bias = m_.vector(width);
      loop_.modulation = m_.plain(kF32, {shape_.steps * (2 * shape_.layers + 1), 3 * width}, normal(0.4));
    } else {
      loop_.action_in_bias = m_.plain(kF32, {shape_.steps, width}, normal(0.5));
      loop_.state_token = m_.data(kF32, {1, width});
      loop_.mlp_out = m_.weight(kF32, width, width);
      loop_.mlp_out_bias = m_.vector(width);
      loop_.final_gain = m_.vector(width);
    }
    // Keys that nobody may see are NaN, those of the loop's own rows until it has written them.
    const int64_t capacity = shape_.keys + rows_ + shape_.unseen;
    const auto cache = [&] {
      const int64_t seen = shape_.keys * net_.head_dim;
      const Tensor made = m_.data(kBf16, {1, capacity, net_.head_dim},
                                  [=](Random& random, int64_t i) { return i < seen ? random.normal() : kNaN; });
      m_.let_loose(made);
      return made;
    };
    for (int64_t i = 0; i < shape_.layers; ++i) {
      const auto gain = [&] { return shape_.adaptive ? Tensor{} : m_.vector(width); };
      DenoiseLoop::Layer layer{.input_gain = gain(),
                               .post_gain = gain(),
                               .q = matrix(q, width),
                               .k = matrix(net_.head_dim, width),
                               .v = matrix(net_.head_dim, width),
                               .o = matrix(width, q),
                               .gate = matrix(net_.mlp, width),
                               .up = matrix(net_.mlp, width),
                               .down = matrix(width, net_.mlp),
                               .k_cache = cache(),
                               .v_cache = cache()};
      loop_.layers.push_back(layer);
    }
    if (shape_.chunking != Chunking::kNone) {
      loop_.previous = m_.data(kF32, {shape_.horizon, net_.actions});
      for (int64_t step = 0; step < shape_.steps; ++step)
        loop_.times.push_back(1.0F + static_cast<float>(step) * loop_.dt);
    }
    if (shape_.chunking == Chunking::kGuided) {
      loop_.guidance = m_.data(kF32, {shape_.horizon, net_.actions}, [](Random& random, int64_t) {
        return 0.25 * static_cast<double>(random.integer(0, 5));
      });
      for (int64_t step = 0; step < shape_.steps; ++step)
        loop_.guidance_scales.push_back(3.0F - static_cast<float>(step));
    }
    if (shape_.chunking == Chunking::kInpaint) loop_.frozen = m_.plain(kI32, {shape_.horizon}, integers(0, 2));
    cache_rows_ = m_.plain(kI32, {rows_}, counting(shape_.keys));
    action_rows_ = m_.plain(kI32, {shape_.horizon}, counting(leading_));
    state_rows_ = m_.plain(kI32, {1}, counting(0));
    loop_.actions = m_.out(kF32, {shape_.horizon, net_.actions});
  }

  // As codes: whole numbers, in each row one of 127, times a number of the row's. Some rows are zero.
  Tensor matrix(int64_t rows, int64_t cols) {
    if (!shape_.codes) return m_.weight(kBf16, rows, cols);
    return m_.plain(kBf16, {rows, cols}, [cols](Random& random, int64_t i) {
      const int64_t row = i / cols;
      const double normal = std::clamp(std::round(36 * random.normal()), -127.0, 127.0);
      const double code = i % cols == row * 37 % cols ? (row % 2 == 0 ? 127 : -127) : normal;
      const double unit = row % 61 == 60 ? 0.0 : (1.0 + 0.013 * static_cast<double>(row % 77)) / 54;
      return code * unit / std::sqrt(static_cast<double>(cols));
    });
  }

  struct Modulation {
    Tensor scale, shift, gate;
  };
  Modulation modulation(int64_t step, int64_t norm) const {
    if (!shape_.adaptive) return {};
    const Tensor row = loop_.modulation.row_range(step * (2 * shape_.layers + 1) + norm, 1);
    return {row.col_range(0, net_.width), row.col_range(net_.width, net_.width),
            row.col_range(2 * net_.width, net_.width)};
  }

  // x_t → (n, W) bf16.
  Tensor suffix(Recorder& r, const Tensor& x_t, int64_t step) const {
    const auto projected = [&](const Tensor& x, const Tensor& w, const Tensor& bias, Activation activation) {
      const Tensor out = r.temporary(kF32, {x.rows(), w.rows()});
      r.add(Linear{.x = x, .w = w, .bias = bias, .out = out, .activation = activation});
      return out;
    };
    const Tensor x = r.temporary(kBf16, {rows_, net_.width});
    if (shape_.adaptive) {
      r.add(Cast{.x = projected(x_t, loop_.action_in, loop_.action_in_bias, Activation::kNone), .out = x});
      return x;
    }
    const Tensor hidden = projected(x_t, loop_.action_in, loop_.action_in_bias.row_range(step, 1), Activation::kSilu);
    const Tensor both = r.temporary(kF32, {rows_, net_.width});
    r.add(ScatterRows{.x = loop_.state_token, .rows = state_rows_, .out = both});
    r.add(ScatterRows{.x = projected(hidden, loop_.mlp_out, loop_.mlp_out_bias, Activation::kNone),
                      .rows = action_rows_,
                      .out = both});
    r.add(Cast{.x = both, .out = x});
    return x;
  }

  Tensor layer(Recorder& r, const Tensor& x, int64_t step, int64_t index) const {
    const DenoiseLoop::Layer& w = loop_.layers[static_cast<size_t>(index)];
    const Modulation first = modulation(step, 2 * index);
    const Modulation second = modulation(step, 2 * index + 1);
    const auto rows = [&](int64_t cols) { return r.temporary(kBf16, {rows_, cols}); };
    const auto sample = [&](const Tensor& t) { return t.reshaped({1, rows_, t.cols()}); };
    const Tensor q = rows(w.q.rows());
    const Tensor attended = rows(w.q.rows());
    const Tensor after = rows(net_.width);
    const Tensor hidden = rows(net_.mlp);
    const Tensor out = rows(net_.width);
    r.add(NormQkvRope{.x = x,
                      .norm = {.gain = w.input_gain, .scale = first.scale, .shift = first.shift, .eps = loop_.eps},
                      .wq = w.q,
                      .wk = w.k,
                      .wv = w.v,
                      .positions = loop_.positions,
                      .cache_rows = cache_rows_,
                      .table = loop_.rope,
                      .q = q,
                      .k_cache = w.k_cache,
                      .v_cache = w.v_cache});
    r.add(Attention{.q = sample(q),
                    .k = w.k_cache,
                    .v = w.v_cache,
                    .key_len = loop_.key_len,
                    .key_mask = {},
                    .out = sample(attended),
                    .heads = static_cast<int32_t>(net_.heads),
                    .kv_heads = 1,
                    .extra_keys = static_cast<int32_t>(rows_),
                    .leading_block = static_cast<int32_t>(leading_),
                    .scale = loop_.scale});
    r.add(LinearResidual{.x = attended, .w = w.o, .bias = {}, .residual = x, .gate = first.gate, .out = after});
    r.add(NormGateUpGelu{.x = after,
                         .norm = {.gain = w.post_gain, .scale = second.scale, .shift = second.shift, .eps = loop_.eps},
                         .w_gate = w.gate,
                         .w_up = w.up,
                         .out = hidden});
    r.add(LinearResidual{.x = hidden, .w = w.down, .bias = {}, .residual = after, .gate = second.gate, .out = out});
    return out;
  }

  Tensor velocity(Recorder& r, const Tensor& x_t, int64_t step) const {
    Tensor x = suffix(r, x_t, step);
    for (int64_t i = 0; i < shape_.layers; ++i) x = layer(r, x, step, i);
    Tensor out = r.temporary(kBf16, {rows_, net_.width});
    if (shape_.adaptive) {
      const Modulation last = modulation(step, 2 * shape_.layers);
      r.add(AdaRmsNorm{.x = x, .scale = last.scale, .shift = last.shift, .out = out, .eps = loop_.eps});
    } else {
      r.add(RmsNorm{.x = x, .gain = loop_.final_gain, .out = out, .eps = loop_.eps});
      const Tensor actions = r.temporary(kBf16, {shape_.horizon, net_.width});
      r.add(GatherRows{.x = out, .rows = action_rows_, .out = actions});
      out = actions;
    }
    const Tensor v = r.temporary(kF32, x_t.shape);
    r.add(Linear{.x = out, .w = loop_.action_out, .bias = loop_.action_out_bias, .out = v});
    return v;
  }

  // The velocity that the step takes.
  Tensor guided(Recorder& r, const Tensor& x, const Tensor& v, int64_t step) const {
    if (!loop_.guidance.defined()) return v;
    const auto i = static_cast<size_t>(step);
    const Tensor out = r.temporary(kF32, v.shape);
    r.add(Guidance{.x = x,
                   .v = v,
                   .target = loop_.previous,
                   .weight = loop_.guidance,
                   .out = out,
                   .time = loop_.times[i],
                   .scale = loop_.guidance_scales[i]});
    return out;
  }

  // x before step `next`, or the actions.
  Tensor with_given_rows(Recorder& r, const Tensor& x, int64_t next) const {
    const bool is_end = next == shape_.steps;
    const Tensor out = is_end ? loop_.actions : r.temporary(kF32, x.shape);
    Tensor given = loop_.previous;
    if (!is_end) {
      const Tensor path = r.temporary(kF32, x.shape);
      r.add(EulerStep{.x = loop_.noise, .v = loop_.previous, .out = path, .dt = -1.0F});
      given = r.temporary(kF32, x.shape);
      r.add(EulerStep{.x = loop_.previous, .v = path, .out = given, .dt = loop_.times[static_cast<size_t>(next)]});
    }
    r.add(SelectRows{.x = x, .y = given, .chosen = loop_.frozen, .out = out});
    return out;
  }

  const Network& net_;
  const LoopShape& shape_;
  int64_t leading_, rows_;
  Maker m_;
  DenoiseLoop loop_;
  Tensor cache_rows_, action_rows_, state_rows_;
};

// Of the actions. A layer rounds to bf16 some 12 times in series between its input and its output, and ends and final
// norm another 4; roundings are independent, each of 2⁻⁹ of what it rounds (standard deviation), and norms keep the
// stream's relative error. Weights that are codes differ by the rounding of their products with a row's unit, once for
// each of a layer's four kinds of products. Velocities have about unit variance here, and the steps together move an
// action by one of them. Six standard deviations.
double most_difference(const LoopShape& shape) {
  const int64_t roundings = shape.codes ? 12 + 4 : 12;
  return 6 * 0x1p-9 * std::sqrt(static_cast<double>(roundings * shape.layers + 4));
}

Case loop_case(const Network& network, const LoopShape& shape, const char* width) {
  constexpr std::array kChunking = {"", "_guided", "_inpaint"};
  Case made =
      Loop(network, shape)
          .make(fmt::format("{}{}_h{}_keys{}_layers{}_steps{}{}{}", width, shape.adaptive ? "adaptive" : "plain",
                            shape.horizon, shape.keys, shape.layers, shape.steps,
                            kChunking[static_cast<size_t>(shape.chunking)], shape.codes ? "_codes" : ""));
  made.most_difference = most_difference(shape);
  return made;
}

}  // namespace

std::vector<Case> denoise_loop_cases() {
  std::vector<Case> cases;
  for (const bool adaptive : {false, true}) {
    for (const LoopShape& shape : {LoopShape{adaptive, 1, 1, 1, 1}, LoopShape{adaptive, 5, 21, 2, 3}}) {
      cases.push_back(loop_case(kNarrow, shape, "narrow_"));
    }
    // The least that each kernel runs, for the sanitizers as well.
    for (const LoopShape& shape : {LoopShape{adaptive, 1, 1, 1, 1}, LoopShape{adaptive, 13, 5, 1, 1}}) {
      cases.push_back(loop_case(kExpert, shape, "least_"));
      cases.back().slow = true;
    }
    // Rows: the most of the kernel for few, one more, ragged parts of the other, its most. Keys: less than one a part
    // of 16, one more than all parts, the standard call's, the most.
    const int64_t leading = adaptive ? 0 : 1;
    for (const LoopShape& shape : {LoopShape{adaptive, 2, 15, 1, 2, 0}, LoopShape{adaptive, 10, 33, 2, 2},
                                   LoopShape{adaptive, 12 - leading, 788, 1, 1}, LoopShape{adaptive, 9, 1008, 1, 1, 0},
                                   LoopShape{adaptive, 13 - leading, 17, 1, 2}, LoopShape{adaptive, 50, 33, 1, 1},
                                   LoopShape{adaptive, 56 - leading, 788, 1, 1}}) {
      cases.push_back(loop_case(kExpert, shape, ""));
      cases.back().slow = true;
    }
    // A previous chunk, with both kernels.
    for (const Chunking chunking : {Chunking::kGuided, Chunking::kInpaint}) {
      cases.push_back(loop_case(kNarrow, {adaptive, 5, 21, 1, 3, 3, chunking}, "narrow_"));
      for (const int64_t horizon : {10, 50}) {
        cases.push_back(loop_case(kExpert, {adaptive, horizon, 33, 1, 3, 3, chunking}, ""));
        cases.back().slow = true;
      }
    }
    // Weights that are codes, which only the kernel for few rows reads as such.
    constexpr Chunking kNo = Chunking::kNone;
    cases.push_back(loop_case(kNarrow, {adaptive, 5, 21, 2, 3, 3, kNo, true}, "narrow_"));
    for (const LoopShape& shape :
         {LoopShape{adaptive, 1, 1, 1, 1, 3, kNo, true}, LoopShape{adaptive, 10, 33, 2, 2, 3, kNo, true},
          LoopShape{adaptive, 12 - leading, 788, 1, 1, 3, kNo, true}, LoopShape{adaptive, 50, 33, 1, 1, 3, kNo, true},
          LoopShape{adaptive, 10, 33, 1, 3, 3, Chunking::kGuided, true},
          LoopShape{adaptive, 10, 33, 1, 3, 3, Chunking::kInpaint, true}}) {
      cases.push_back(loop_case(kExpert, shape, shape.horizon == 1 ? "least_" : ""));
      cases.back().slow = true;
    }
    // The persistent loop by itself, as a call runs it.
    const int64_t keys = adaptive ? 968 : 788;
    for (const LoopShape& shape : {LoopShape{adaptive, 10, keys, 18, 10, 0}, LoopShape{adaptive, 50, keys, 18, 10, 0},
                                   LoopShape{adaptive, 10, keys, 18, 10, 0, kNo, true}}) {
      cases.push_back(loop_case(kExpert, shape, ""));
      cases.back().bench = cases.back().timed_only = true;
    }
  }
  return cases;
}

}  // namespace tendon::op_check
