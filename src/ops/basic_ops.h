// The basic operations: one argument struct and one formula each. Every backend's kernels and every fused operation
// are defined in terms of these. Rows are the flattened leading dimensions; sums accumulate in f32 or better and are
// rounded once when they are stored. Dimension letters: docs/glossary.md.
#pragma once

#include <cstdint>

#include "base/tensor.h"

namespace tendon {

enum class Access { kRead, kWrite, kReadWrite };
enum class Activation { kNone, kGeluTanh, kSilu };

// Pictures of one size out of pictures of any size. out[i] = images[i] where frames[i] is 0; else of the frame that
// begins at row frames[i] of pool, with its tables (ops/frame.h):
//   row(y, x, c) = min((2²¹ + Σ_p pixel(y, x_first[x] + p, c) · x_weights[p, x]) >> 22, 255)
//   out[i, y, x, c] = min((2²¹ + Σ_p row(y_first[y] + p, x, c) · y_weights[p, y]) >> 22, 255)
// images, out (N, side, side, 3) u8, frames (N) i32, pool (rows, 16) u8: memory that the device reads, wherever it
// lies.
struct ResizeFrames {
  static constexpr const char* kName = "resize_frames";
  Tensor images, frames, pool, out;
  template <class F>
  void tensors(F&& f) {
    f("images", images, Access::kRead), f("frames", frames, Access::kRead), f("pool", pool, Access::kRead);
    f("out", out, Access::kWrite);
  }
};

// out[(n, r, c), (channel, i, j)] = pixel(n, P·r + i, P·c + j, channel), row-major patches of P×P pixels.
// images (N, height, width, 3), f32 in [-1, 1], or u8 v taken as v / 255 · 2 - 1;  out (N·T, 3·P·P) f32.
struct Patchify {
  static constexpr const char* kName = "patchify";
  Tensor images, out;
  int32_t patch = 14;
  template <class F>
  void tensors(F&& f) {
    f("images", images, Access::kRead), f("out", out, Access::kWrite);
  }
};

// out = act(x · wᵀ + bias).  x (M, K), w (N, K), bias (N) f32 or undefined, out (M, N). With e4m3 or i8 codes in w, x
// has them too: they are multiplied and summed, and the sum is multiplied by the scales of its row of x and its row of
// w.
struct Linear {
  static constexpr const char* kName = "linear";
  Tensor x, w, bias, out;
  Activation activation = Activation::kNone;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("w", w, Access::kRead), f("bias", bias, Access::kRead), f("out", out, Access::kWrite);
  }
};

// out[r] = x[r] + table[r mod T].  x (M, W), table (T, W) f32, out (M, W).
struct AddRows {
  static constexpr const char* kName = "add_rows";
  Tensor x, table, out;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("table", table, Access::kRead), f("out", out, Access::kWrite);
  }
};

// out = (x - mean) / sqrt(var + eps) · gain + bias over each row.  x, out (M, W), gain, bias (W) f32.
struct LayerNorm {
  static constexpr const char* kName = "layer_norm";
  Tensor x, gain, bias, out;
  float eps = 1e-6F;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("gain", gain, Access::kRead), f("bias", bias, Access::kRead);
    f("out", out, Access::kWrite);
  }
};

// out = x / sqrt(mean(x²) + eps) · (1 + gain) over each row.  x, out (M, W), gain (W) f32.
struct RmsNorm {
  static constexpr const char* kName = "rms_norm";
  Tensor x, gain, out;
  float eps = 1e-6F;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("gain", gain, Access::kRead), f("out", out, Access::kWrite);
  }
};

// out = x / sqrt(mean(x²) + eps) · (1 + scale) + shift over each row.  x, out (M, W), scale, shift (W) f32.
struct AdaRmsNorm {
  static constexpr const char* kName = "ada_rms_norm";
  Tensor x, scale, shift, out;
  float eps = 1e-6F;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("scale", scale, Access::kRead), f("shift", shift, Access::kRead);
    f("out", out, Access::kWrite);
  }
};

// Rotates each head's halves (a, b) to (a·cos - b·sin, b·cos + a·sin) with the row's angle table.
// x, out (M, heads·D), positions (M) i32, table (positions, D) f32 = [cos (D/2) | sin (D/2)].
struct Rope {
  static constexpr const char* kName = "rope";
  Tensor x, positions, table, out;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("positions", positions, Access::kRead), f("table", table, Access::kRead);
    f("out", out, Access::kWrite);
  }
};

// out[rows[r]] = x[r]; rows below 0 are skipped, all other rows of out stay.  x (M, C), rows (M) i32, out (R, C).
struct ScatterRows {
  static constexpr const char* kName = "scatter_rows";
  Tensor x, rows, out;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("rows", rows, Access::kRead), f("out", out, Access::kReadWrite);
  }
};

// out[r] = x[rows[r]].  x (R, C), rows (M) i32, out (M, C).
struct GatherRows {
  static constexpr const char* kName = "gather_rows";
  Tensor x, rows, out;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("rows", rows, Access::kRead), f("out", out, Access::kWrite);
  }
};

// Multi-query / multi-head attention without biases. For query row t of sample b and key j:
//   p = softmax_j(scale · q·k_j), out = Σ_j p_j · v_j over the keys j < key_len[b] + extra(t) with key_mask[b, j] ≠ 0,
//   extra(t) = leading_block for t < leading_block, else extra_keys.
// q (B, T, heads·D), k, v (B, capacity, kv_heads·D), key_len (B) i32 or undefined (then all `capacity` keys),
// key_mask (B, capacity) u8 or undefined, out (B, T, heads·D). A row without keys yields 0.
struct Attention {
  static constexpr const char* kName = "attention";
  Tensor q, k, v, key_len, key_mask, out;
  int32_t heads = 1, kv_heads = 1;
  int32_t extra_keys = 0, leading_block = 0;
  float scale = 1.0F;
  template <class F>
  void tensors(F&& f) {
    f("q", q, Access::kRead), f("k", k, Access::kRead), f("v", v, Access::kRead);
    f("key_len", key_len, Access::kRead), f("key_mask", key_mask, Access::kRead), f("out", out, Access::kWrite);
  }
};

// out = x + y.  All (M, W).
struct ResidualAdd {
  static constexpr const char* kName = "residual_add";
  Tensor x, y, out;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("y", y, Access::kRead), f("out", out, Access::kWrite);
  }
};

// out = x + round(y · round(gate)), rounded to y's type.  x, y, out (M, W), gate (W) f32.
struct GatedResidual {
  static constexpr const char* kName = "gated_residual";
  Tensor x, y, gate, out;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("y", y, Access::kRead), f("gate", gate, Access::kRead), f("out", out, Access::kWrite);
  }
};

// out = round(gelu_tanh(gate)) · up, rounded to gate's type.  All (M, N).
struct GeluMul {
  static constexpr const char* kName = "gelu_mul";
  Tensor gate, up, out;
  template <class F>
  void tensors(F&& f) {
    f("gate", gate, Access::kRead), f("up", up, Access::kRead), f("out", out, Access::kWrite);
  }
};

// Prefix rows: out[r] = features[sources[r]] for sources[r] ≥ 0, else embedding[-1 - sources[r]] · scale (one
// rounding).  features (F, W), embedding (vocab, W), sources (M) i32, out (M, W).
struct GatherPrefix {
  static constexpr const char* kName = "gather_prefix";
  Tensor features, embedding, sources, out;
  float scale = 1.0F;
  template <class F>
  void tensors(F&& f) {
    f("features", features, Access::kRead), f("embedding", embedding, Access::kRead);
    f("sources", sources, Access::kRead), f("out", out, Access::kWrite);
  }
};

// out[r] = [x[r] ; row].  x (M, A), row (1, C), out (M, A + C).
struct ConcatRow {
  static constexpr const char* kName = "concat_row";
  Tensor x, row, out;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("row", row, Access::kRead), f("out", out, Access::kWrite);
  }
};

// out = x in out's type.  x, out (M, W). From e4m3 or i8: scale · code, in f32. To them, from numbers: a row gets the
// scale that makes its largest magnitude the largest code, 448 or 127 (RowScale of base/dtype.h); with factors (W) f32,
// x[r] · factors in place of x[r], and `unit_scales` among them: the scale 1, and what is larger than the largest code
// becomes that code.
struct Cast {
  static constexpr const char* kName = "cast";
  Tensor x, factors = {}, out;
  bool unit_scales = false;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("factors", factors, Access::kRead), f("out", out, Access::kWrite);
  }
};

// out = x + dt · v, one multiplication and one addition in f32.  All (M, A) f32.
struct EulerStep {
  static constexpr const char* kName = "euler_step";
  Tensor x, v, out;
  float dt = 0.0F;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("v", v, Access::kRead), f("out", out, Access::kWrite);
  }
};

// out[r] = y[r] where chosen[r] ≠ 0, else x[r].  x, y, out (M, W) of one type, chosen (M) i32.
struct SelectRows {
  static constexpr const char* kName = "select_rows";
  Tensor x, y, chosen, out;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("y", y, Access::kRead), f("chosen", chosen, Access::kRead);
    f("out", out, Access::kWrite);
  }
};

// The velocity v of a flow at x, pulled so that the end of the path, x - time · v, comes nearer to the target:
// out = v - scale · (weight · (target - (x - time · v))), every operation rounded in f32.  All (M, A) f32.
struct Guidance {
  static constexpr const char* kName = "guidance";
  Tensor x, v, target, weight, out;
  float time = 0.0F, scale = 0.0F;
  template <class F>
  void tensors(F&& f) {
    f("x", x, Access::kRead), f("v", v, Access::kRead), f("target", target, Access::kRead);
    f("weight", weight, Access::kRead), f("out", out, Access::kWrite);
  }
};

}  // namespace tendon
