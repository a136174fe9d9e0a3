#include "ops/ops.h"

#include <fmt/format.h>

#include "base/check.h"
#include "ops/frame.h"

namespace tendon {
namespace {

// One call per rule; the message carries the whole operation.
class Rules {
 public:
  explicit Rules(const Op& op) : op_(op) {}

  void require(bool holds, const char* rule) const {
    TENDON_CHECK(holds, "{} needs {}: {}", op_label(op_), rule, describe(op_));
  }
  void same_matrix(const Tensor& a, const Tensor& b, const char* rule) const {
    require(a.rows() == b.rows() && a.cols() == b.cols(), rule);
  }
  void vector(const Tensor& v, int64_t n, const char* rule) const {
    require(!v.defined() || (v.elements() == n && v.dtype == DType::kF32), rule);
  }
  // The gain, or scale and shift, of a norm over `width`.
  void norm(const NormParams& norm, int64_t width) const {
    vector(norm.gain, width, "a gain of W f32 numbers");
    vector(norm.scale, width, "a scale of W f32 numbers");
    vector(norm.shift, width, "a shift of W f32 numbers");
    require(norm.scale.defined() == norm.shift.defined(), "scale and shift together");
  }
  // What makes codes of a result.
  void factors(const Tensor& factors, const Tensor& out) const {
    vector(factors, out.cols(), "N f32 factors");
    require(factors.defined() == is_scaled(out.dtype), "factors where out has codes, and only there");
  }
  void index(const Tensor& v, int64_t n, const char* rule) const {
    require(v.elements() == n && v.dtype == DType::kI32 && v.contiguous(), rule);
  }
  void product(const Tensor& x, const Tensor& w, const Tensor& out) const {
    require(x.cols() == w.cols() && out.cols() == w.rows() && out.rows() == x.rows(),
            "out (M, N) = x (M, K) · w (N, K)ᵀ");
    require(w.contiguous(), "a contiguous w");
  }

 private:
  const Op& op_;
};

int64_t pixels(const Tensor& images) { return images.shape[1] * images.shape[2]; }

void check(const ResizeFrames& a, const Rules& r) {
  const Shape& shape = a.out.shape;
  r.require(shape.rank() == 4 && shape[1] == shape[2] && shape[3] == 3 && a.images.shape == shape,
            "images and out (N, side, side, 3)");
  r.require(a.images.dtype == DType::kU8 && a.out.dtype == DType::kU8 && a.images.contiguous() && a.out.contiguous(),
            "contiguous u8 pictures");
  r.index(a.frames, shape[0], "one i32 frame per picture");
  r.require(a.pool.dtype == DType::kU8 && a.pool.cols() == kFrameAlignment && a.pool.contiguous(),
            "a pool (rows, 16) of bytes");
}
void check(const Patchify& a, const Rules& r) {
  r.require(a.images.shape.rank() == 4 && a.images.cols() == 3, "images (N, height, width, 3)");
  r.require(a.images.shape[1] % a.patch == 0 && a.images.shape[2] % a.patch == 0, "whole patches");
  r.require(a.images.dtype == DType::kU8 || a.images.dtype == DType::kF32, "u8 or f32 images");
  r.require(a.out.dtype == DType::kF32 && a.out.cols() == 3 * a.patch * a.patch &&
                a.out.rows() == a.images.shape[0] * pixels(a.images) / (a.patch * a.patch),
            "out (N·T, 3·P·P) f32");
}
void check(const Linear& a, const Rules& r) {
  r.product(a.x, a.w, a.out);
  r.require(is_scaled(a.w.dtype) ? a.x.dtype == a.w.dtype : !is_scaled(a.x.dtype), "x and w of one type with scales");
  r.require(!is_scaled(a.out.dtype), "an out without scales");
  r.vector(a.bias, a.w.rows(), "a bias of N f32 numbers");
}
void check(const AddRows& a, const Rules& r) {
  r.same_matrix(a.x, a.out, "x and out of one shape");
  r.require(a.table.cols() == a.x.cols() && a.x.rows() % a.table.rows() == 0, "a table (T, W) with M a multiple of T");
}
void check(const LayerNorm& a, const Rules& r) {
  r.same_matrix(a.x, a.out, "x and out of one shape");
  r.vector(a.gain, a.x.cols(), "a gain of W f32 numbers");
  r.vector(a.bias, a.x.cols(), "a bias of W f32 numbers");
}
void check(const RmsNorm& a, const Rules& r) {
  r.same_matrix(a.x, a.out, "x and out of one shape");
  r.vector(a.gain, a.x.cols(), "a gain of W f32 numbers");
}
void check(const AdaRmsNorm& a, const Rules& r) {
  r.same_matrix(a.x, a.out, "x and out of one shape");
  r.vector(a.scale, a.x.cols(), "a scale of W f32 numbers");
  r.vector(a.shift, a.x.cols(), "a shift of W f32 numbers");
}
void check(const Rope& a, const Rules& r) {
  r.same_matrix(a.x, a.out, "x and out of one shape");
  r.index(a.positions, a.x.rows(), "one i32 position per row");
  r.require(a.table.cols() % 2 == 0 && a.x.cols() % a.table.cols() == 0, "heads of the table's width");
}
void check(const ScatterRows& a, const Rules& r) {
  r.require(a.x.cols() == a.out.cols() && a.x.dtype == a.out.dtype, "rows of one width and type");
  r.index(a.rows, a.x.rows(), "one i32 target per row");
}
void check(const GatherRows& a, const Rules& r) {
  r.require(a.x.cols() == a.out.cols() && a.x.dtype == a.out.dtype, "rows of one width and type");
  r.index(a.rows, a.out.rows(), "one i32 source per row");
}
void check_attention(const Attention& a, const Tensor& out, const Rules& r) {
  r.require(a.q.shape.rank() == 3 && a.k.shape.rank() == 3 && a.q.shape[0] == a.k.shape[0],
            "q (B, T, ·) and k (B, C, ·)");
  r.require(a.k.shape == a.v.shape && a.q.shape == out.shape, "k like v and out like q");
  r.require(a.heads % a.kv_heads == 0 && a.q.cols() % a.heads == 0 && a.q.cols() / a.heads == a.k.cols() / a.kv_heads &&
                a.k.cols() % a.kv_heads == 0,
            "heads of one width");
  if (a.key_len.defined()) r.index(a.key_len, a.q.shape[0], "one i32 key length per sample");
  r.require(a.leading_block <= a.q.shape[1] && a.extra_keys >= a.leading_block, "a leading block within the queries");
}
void check(const Attention& a, const Rules& r) { check_attention(a, a.out, r); }
void check(const AttentionToCodes& a, const Rules& r) {
  check_attention(a.attention, a.out, r);
  r.factors(a.factors, a.out);
  r.require(a.factors.defined() && !a.attention.out.defined(), "factors, and one result");
}
void check(const ResidualAdd& a, const Rules& r) {
  r.same_matrix(a.x, a.out, "x and out of one shape");
  r.same_matrix(a.y, a.out, "y and out of one shape");
}
void check(const GatedResidual& a, const Rules& r) {
  r.same_matrix(a.x, a.out, "x and out of one shape");
  r.same_matrix(a.y, a.out, "y and out of one shape");
  r.vector(a.gate, a.x.cols(), "a gate of W f32 numbers");
}
void check(const GeluMul& a, const Rules& r) {
  r.same_matrix(a.gate, a.out, "gate and out of one shape");
  r.same_matrix(a.up, a.out, "up and out of one shape");
}
void check(const GatherPrefix& a, const Rules& r) {
  r.index(a.sources, a.out.rows(), "one i32 source per row");
  r.require(a.features.cols() == a.out.cols() && a.embedding.cols() == a.out.cols(), "rows of one width");
}
void check(const ConcatRow& a, const Rules& r) {
  r.require(a.out.cols() == a.x.cols() + a.row.cols() && a.out.rows() == a.x.rows() && a.row.rows() == 1,
            "out (M, A + C) from x (M, A) and row (1, C)");
}
void check(const Cast& a, const Rules& r) {
  r.same_matrix(a.x, a.out, "x and out of one shape");
  r.require(!is_scaled(a.x.dtype) || !is_scaled(a.out.dtype), "numbers, not codes, that become codes");
  r.vector(a.factors, a.x.cols(), "W f32 factors");
  r.require(is_scaled(a.out.dtype) || !a.factors.defined(), "codes where there are factors");
  r.require(a.factors.defined() || !a.unit_scales, "factors for unit scales");
}
void check(const EulerStep& a, const Rules& r) {
  r.same_matrix(a.x, a.out, "x and out of one shape");
  r.same_matrix(a.v, a.out, "v and out of one shape");
}
void check(const SelectRows& a, const Rules& r) {
  r.same_matrix(a.x, a.out, "x and out of one shape");
  r.same_matrix(a.y, a.out, "y and out of one shape");
  r.require(a.x.dtype == a.out.dtype && a.y.dtype == a.out.dtype, "rows of one type");
  r.index(a.chosen, a.out.rows(), "one i32 number per row");
}
void check(const Guidance& a, const Rules& r) {
  for (const Tensor* t : {&a.x, &a.v, &a.target, &a.weight}) {
    r.same_matrix(*t, a.out, "tensors of one shape");
    r.require(t->dtype == DType::kF32 && a.out.dtype == DType::kF32, "f32 tensors");
  }
}
void check(const PatchEmbed& a, const Rules& r) {
  r.require(a.images.shape.rank() == 4 && a.images.cols() == 3 && a.w.cols() == 3 * a.patch * a.patch &&
                a.positions.rows() * a.patch * a.patch == pixels(a.images) && a.positions.cols() == a.out.cols() &&
                a.out.rows() == a.images.shape[0] * a.positions.rows() && a.w.rows() == a.out.cols(),
            "images (N, height, width, 3), w (W, 3·P·P), positions (T, W) and out (N·T, W)");
  r.vector(a.bias, a.w.rows(), "a bias of W f32 numbers");
}
void check(const LayerNormQkv& a, const Rules& r) {
  r.require(a.out.cols() == a.wq.rows() + a.wk.rows() + a.wv.rows() && a.out.rows() == a.x.rows() &&
                a.wq.cols() == a.x.cols() && a.wk.cols() == a.x.cols() && a.wv.cols() == a.x.cols(),
            "out (M, Nq + Nk + Nv)");
  r.vector(a.gain, a.x.cols(), "a gain of W f32 numbers");
  r.vector(a.bias, a.x.cols(), "a bias of W f32 numbers");
  r.vector(a.bq, a.wq.rows(), "a bq of Nq f32 numbers");
  r.vector(a.bk, a.wk.rows(), "a bk of Nk f32 numbers");
  r.vector(a.bv, a.wv.rows(), "a bv of Nv f32 numbers");
}
void check(const LayerNormLinear& a, const Rules& r) {
  r.product(a.x, a.w, a.out);
  r.vector(a.gain, a.x.cols(), "a gain of W f32 numbers");
  r.vector(a.bias, a.x.cols(), "a bias of W f32 numbers");
  r.vector(a.linear_bias, a.w.rows(), "a linear_bias of N f32 numbers");
  r.factors(a.factors, a.out);
}
void check(const LinearResidual& a, const Rules& r) {
  r.product(a.x, a.w, a.out);
  r.vector(a.bias, a.w.rows(), "a bias of N f32 numbers");
  r.vector(a.gate, a.out.cols(), "a gate of N f32 numbers");
  r.require(!is_scaled(a.x.dtype) || a.x.dtype == a.w.dtype, "codes in x only of w's type");
  r.same_matrix(a.residual, a.out, "residual and out of one shape");
}
void check(const NormQkvRope& a, const Rules& r) {
  r.require(a.wq.defined() == a.q.defined(), "q and wq together");
  if (a.wq.defined()) r.product(a.x, a.wq, a.q);
  r.require(a.wk.cols() == a.x.cols() && a.wv.cols() == a.x.cols() && a.wk.rows() == a.k_cache.cols() &&
                a.wv.rows() == a.v_cache.cols(),
            "wk and wv that fit x and the cache");
  r.norm(a.norm, a.x.cols());
  r.require(a.table.cols() % 2 == 0 && a.wk.rows() % a.table.cols() == 0 &&
                (!a.wq.defined() || a.wq.rows() % a.table.cols() == 0),
            "heads of the table's width");
  r.index(a.positions, a.x.rows(), "one i32 position per row");
  r.index(a.cache_rows, a.x.rows(), "one i32 cache row per row");
}
void check(const NormGateUpGelu& a, const Rules& r) {
  r.product(a.x, a.w_gate, a.out);
  r.product(a.x, a.w_up, a.out);
  r.norm(a.norm, a.x.cols());
  r.factors(a.factors, a.out);
}
void check_layer(const DenoiseLoop& a, const DenoiseLoop::Layer& layer, const Rules& r) {
  const int64_t width = a.layers[0].o.rows();
  r.vector(layer.input_gain, width, "input gains of W f32 numbers");
  r.vector(layer.post_gain, width, "post gains of W f32 numbers");
  r.require(layer.q.cols() == width && layer.k.cols() == width && layer.v.cols() == width &&
                layer.v.rows() == layer.k.rows() && layer.o.rows() == width && layer.o.cols() == layer.q.rows(),
            "q, k, v (·, W) and o (W, ·)");
  r.require(layer.gate.cols() == width && layer.up.cols() == width && layer.up.rows() == layer.gate.rows() &&
                layer.down.rows() == width && layer.down.cols() == layer.gate.rows(),
            "gate, up (·, W) and down (W, ·)");
  r.require(layer.k_cache.shape.rank() == 3 && layer.k_cache.shape == layer.v_cache.shape &&
                layer.k_cache.cols() == layer.k.rows() && layer.k_cache.shape[0] == a.key_len.elements(),
            "caches (B, C, ·) as wide as k");
}
void check(const DenoiseLoop& a, const Rules& r) {
  r.require(a.parts != nullptr && !a.parts->empty() && a.steps > 0 && !a.layers.empty(), "steps of layers, recorded");
  const int64_t width = a.layers[0].o.rows();
  const int64_t actions = a.noise.cols();
  const int64_t batch = a.key_len.elements();
  r.same_matrix(a.noise, a.actions, "noise and actions of one shape");
  r.require(a.state_token.defined() != a.modulation.defined() && a.mlp_out.defined() == a.state_token.defined() &&
                a.mlp_out_bias.defined() == a.mlp_out.defined() && a.final_gain.defined() == a.mlp_out.defined(),
            "what π0 has or what π0.5 has");
  r.index(a.key_len, batch, "i32 key lengths");
  r.index(a.positions, a.noise.rows() + (a.state_token.defined() ? batch : 0), "one i32 position per row");
  r.require(!a.state_token.defined() || a.state_token.cols() == width, "a state token (B, W)");
  r.require(a.rope.cols() % 2 == 0 && a.layers[0].k.rows() % a.rope.cols() == 0, "heads of the table's width");
  r.require(a.action_in.rows() == width && a.action_in.cols() == actions, "action_in (W, A)");
  r.vector(a.action_in_bias, a.action_in_bias.elements() == width ? width : a.steps * width,
           "action_in biases of W f32 numbers, once or for every step");
  if (a.mlp_out.defined()) {
    r.require(a.mlp_out.rows() == width && a.mlp_out.cols() == width, "mlp_out (W, W)");
    r.vector(a.mlp_out_bias, width, "an mlp_out bias of W f32 numbers");
    r.vector(a.final_gain, width, "a final gain of W f32 numbers");
  } else {
    r.require(a.modulation.cols() == 3 * width && a.modulation.rows() == a.steps * (2 * std::ssize(a.layers) + 1),
              "modulations (steps · (2 · layers + 1), 3 · W)");
  }
  r.require(a.action_out.rows() == actions && a.action_out.cols() == width, "action_out (A, W)");
  r.vector(a.action_out_bias, actions, "an action_out bias of A f32 numbers");
  for (const DenoiseLoop::Layer& layer : a.layers) check_layer(a, layer, r);
}

}  // namespace

std::string describe(const Op& op) {
  std::string text(op_name(op));
  const char* separator = " ";
  for_each_tensor(op, [&](const char* name, const Tensor& tensor, Access) {
    text += fmt::format("{}{}{} {}", separator, name, to_string(tensor.shape), dtype_name(tensor.dtype));
    separator = ", ";
  });
  return text;
}

void validate(const Op& op) {
  std::visit([&](const auto& args) { check(args, Rules(op)); }, op.args);
}

}  // namespace tendon
