#include "ops/compose.h"

#include <type_traits>

namespace tendon {
namespace {

Tensor normalized(Recorder& r, const Tensor& x, const NormParams& norm) {
  const Tensor h = r.temporary(x.dtype, {x.rows(), x.cols()});
  if (norm.adaptive()) {
    r.add(AdaRmsNorm{.x = x, .scale = norm.scale, .shift = norm.shift, .out = h, .eps = norm.eps});
  } else {
    r.add(RmsNorm{.x = x, .gain = norm.gain, .out = h, .eps = norm.eps});
  }
  return h;
}

// `rows` is the operand; y gets `type`.
Tensor projected(Recorder& r, const Tensor& rows, const Tensor& w, DType type) {
  const Tensor y = r.temporary(type, {rows.rows(), w.rows()});
  r.add(Linear{.x = rows, .w = w, .bias = {}, .out = y});
  return y;
}

// Where the result is in x's type, and what makes codes of it where it has factors.
template <class Args>
Tensor result(Recorder& r, const Args& a) {
  return a.factors.defined() ? r.temporary(a.x.dtype, {a.out.rows(), a.out.cols()}) : a.out;
}
template <class Args>
void finish(Recorder& r, const Args& a, const Tensor& y) {
  if (a.factors.defined()) r.add(Cast{.x = y, .factors = a.factors, .out = a.out, .unit_scales = true});
}

void compose(const PatchEmbed& a, Recorder& r) {
  const Tensor patches = r.temporary(DType::kF32, {a.out.rows(), a.w.cols()});
  const Tensor embedded = r.temporary(DType::kF32, {a.out.rows(), a.out.cols()});
  r.add(Patchify{.images = a.images, .out = patches, .patch = a.patch});
  r.add(Linear{.x = patches, .w = a.w, .bias = a.bias, .out = embedded});
  r.add(AddRows{.x = embedded, .table = a.positions, .out = a.out});
}

void compose(const LayerNormQkv& a, Recorder& r) {
  const Tensor h = r.temporary(a.x.dtype, {a.x.rows(), a.x.cols()});
  r.add(LayerNorm{.x = a.x, .gain = a.gain, .bias = a.bias, .out = h, .eps = a.eps});
  const Tensor rows = operand(r, h, a.wq);
  const int64_t q = a.wq.rows();
  const int64_t k = a.wk.rows();
  r.add(Linear{.x = rows, .w = a.wq, .bias = a.bq, .out = a.out.col_range(0, q)});
  r.add(Linear{.x = rows, .w = a.wk, .bias = a.bk, .out = a.out.col_range(q, k)});
  r.add(Linear{.x = rows, .w = a.wv, .bias = a.bv, .out = a.out.col_range(q + k, a.wv.rows())});
}

void compose(const LayerNormLinear& a, Recorder& r) {
  const Tensor h = r.temporary(a.x.dtype, {a.x.rows(), a.x.cols()});
  const Tensor y = result(r, a);
  r.add(LayerNorm{.x = a.x, .gain = a.gain, .bias = a.bias, .out = h, .eps = a.eps});
  r.add(Linear{.x = operand(r, h, a.w), .w = a.w, .bias = a.linear_bias, .out = y, .activation = a.activation});
  finish(r, a, y);
}

void compose(const AttentionToCodes& a, Recorder& r) {
  Attention attention = a.attention;
  attention.out = r.temporary(a.attention.q.dtype, a.out.shape);
  r.add(attention);
  r.add(Cast{.x = attention.out, .factors = a.factors, .out = a.out, .unit_scales = true});
}

void compose(const LinearResidual& a, Recorder& r) {
  const Tensor y = r.temporary(a.out.dtype, {a.out.rows(), a.out.cols()});
  r.add(Linear{.x = operand(r, a.x, a.w), .w = a.w, .bias = a.bias, .out = y});
  if (a.gate.defined()) {
    r.add(GatedResidual{.x = a.residual, .y = y, .gate = a.gate, .out = a.out});
  } else {
    r.add(ResidualAdd{.x = a.residual, .y = y, .out = a.out});
  }
}

void compose(const NormQkvRope& a, Recorder& r) {
  const Tensor h = operand(r, normalized(r, a.x, a.norm), a.wk);
  const DType type = a.x.dtype;
  if (a.wq.defined()) {
    r.add(Rope{.x = projected(r, h, a.wq, type), .positions = a.positions, .table = a.table, .out = a.q});
  }
  const Tensor k = projected(r, h, a.wk, type);
  const Tensor rotated = r.temporary(k.dtype, k.shape);
  r.add(Rope{.x = k, .positions = a.positions, .table = a.table, .out = rotated});
  r.add(ScatterRows{.x = rotated, .rows = a.cache_rows, .out = a.k_cache});
  r.add(ScatterRows{.x = projected(r, h, a.wv, type), .rows = a.cache_rows, .out = a.v_cache});
}

void compose(const NormGateUpGelu& a, Recorder& r) {
  const Tensor h = operand(r, normalized(r, a.x, a.norm), a.w_gate);
  const Tensor gate = projected(r, h, a.w_gate, a.x.dtype);
  const Tensor y = result(r, a);
  r.add(GeluMul{.gate = gate, .up = projected(r, h, a.w_up, a.x.dtype), .out = y});
  finish(r, a, y);
}

void compose(const DenoiseLoop& a, Recorder& r) {
  for (const Op& part : *a.parts) r.add(part);
}

template <class Args>
concept Fused = requires(const Args& args, Recorder& r) {
  compose(args, r);
};

}  // namespace

Tensor operand(Recorder& recorder, const Tensor& x, const Tensor& w) {
  if (!is_scaled(w.dtype) || x.dtype == w.dtype) return x;
  const Tensor rows = recorder.temporary(w.dtype, {x.rows(), x.cols()});
  recorder.add(Cast{.x = x, .out = rows});
  return rows;
}

std::vector<std::string_view> fused_operations() {
  std::vector<std::string_view> names;
  const auto add = [&]<class Args>(std::type_identity<Args>) {
    if constexpr (Fused<Args>) names.emplace_back(Args::kName);
  };
  [&]<class... Args>(std::type_identity<std::variant<Args...>>) {
    (add(std::type_identity<Args>{}), ...);
  }(std::type_identity<decltype(Op::args)>{});
  return names;
}

bool expand(const Op& op, Recorder& recorder) {
  const Recorder::Scope scope(recorder, op_label(op));
  return std::visit(
      [&]<class Args>(const Args& args) {
        if constexpr (Fused<Args>) {
          compose(args, recorder);
          return true;
        } else {
          return false;
        }
      },
      op.args);
}

}  // namespace tendon
