// One valid operation of every kind, on planned values.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ops/recorder.h"

namespace tendon::test {

class Samples {
 public:
  // M = 6 rows, W = 8, N = 10 columns, 2 heads of 4, 1 key head, capacity 12.
  Samples() {
    const Tensor x = make("x", {6, 8});
    const Tensor y = make("y", {6, 8});
    const Tensor out = make("out", {6, 8});
    const Tensor gain = make("gain", {8});
    const Tensor bias = make("bias", {8});
    const Tensor w = make("w", {10, 8});
    const Tensor w_back = make("w_back", {8, 10});
    const Tensor wide = make("wide", {6, 10});
    const Tensor other_wide = make("other_wide", {6, 10});
    const Tensor bias10 = make("bias10", {10});
    const Tensor images = make("images", {2, 28, 28, 3}, DType::kU8);
    const Tensor square = make("square", {8, 8});
    const Tensor k_weight = make("k_weight", {4, 8});
    const Tensor rope_table = make("rope_table", {20, 4});
    const Tensor index6 = make("index6", {6}, DType::kI32);
    const Tensor cache = make("cache", {2, 12, 4});
    const Tensor v_cache = make("v_cache", {2, 12, 4});
    const Tensor q = make("q", {6, 8});

    add(ResizeFrames{.images = images,
                     .frames = make("frames", {2}, DType::kI32),
                     .pool = make("pool", {256, 16}, DType::kU8),
                     .out = make("resized", {2, 28, 28, 3}, DType::kU8)});
    add(Patchify{.images = images, .out = make("patches", {8, 588})});
    add(Linear{.x = x, .w = w, .bias = bias10, .out = wide});
    add(AddRows{.x = x, .table = make("rows", {3, 8}), .out = out});
    add(LayerNorm{.x = x, .gain = gain, .bias = bias, .out = out});
    add(RmsNorm{.x = x, .gain = gain, .out = out});
    add(AdaRmsNorm{.x = x, .scale = gain, .shift = bias, .out = out});
    add(Rope{.x = x, .positions = index6, .table = rope_table, .out = out});
    add(ScatterRows{.x = x, .rows = index6, .out = make("table", {24, 8})});
    add(GatherRows{.x = make("from", {24, 8}), .rows = index6, .out = out});
    add(Attention{.q = x.reshaped({2, 3, 8}),
                  .k = cache,
                  .v = v_cache,
                  .key_len = make("key_len", {2}, DType::kI32),
                  .key_mask = {},
                  .out = out.reshaped({2, 3, 8}),
                  .heads = 2,
                  .kv_heads = 1,
                  .extra_keys = 3,
                  .leading_block = 1});
    add(AttentionToCodes{.attention = {.q = x.reshaped({2, 3, 8}),
                                       .k = cache,
                                       .v = v_cache,
                                       .key_len = make("attended_key_len", {2}, DType::kI32),
                                       .key_mask = {},
                                       .out = {},
                                       .heads = 2,
                                       .kv_heads = 1},
                         .factors = gain,
                         .out = make("attended", {2, 3, 8}, DType::kI8)});
    add(ResidualAdd{.x = x, .y = y, .out = out});
    add(GatedResidual{.x = x, .y = y, .gate = gain, .out = out});
    add(GeluMul{.gate = x, .up = y, .out = out});
    add(GatherPrefix{
        .features = make("features", {4, 8}), .embedding = make("embedding", {50, 8}), .sources = index6, .out = out});
    add(ConcatRow{.x = x, .row = make("row", {1, 2}), .out = wide});
    add(Cast{.x = x, .out = make("rounded", {6, 8}, DType::kBf16)});
    add(Cast{.x = x, .factors = gain, .out = make("codes", {6, 8}, DType::kI8), .unit_scales = true});
    add(EulerStep{.x = x, .v = y, .out = out, .dt = -0.1F});
    add(SelectRows{.x = x, .y = y, .chosen = index6, .out = out});
    add(Guidance{.x = x, .v = y, .target = x, .weight = y, .out = out, .time = 0.5F, .scale = 2.0F});
    add(PatchEmbed{.images = images,
                   .w = make("kernel", {8, 588}),
                   .bias = bias,
                   .positions = make("positions", {4, 8}),
                   .out = make("embedded", {8, 8})});
    add(LayerNormQkv{.x = x,
                     .gain = gain,
                     .bias = bias,
                     .wq = square,
                     .wk = square,
                     .wv = square,
                     .bq = bias,
                     .bk = bias,
                     .bv = bias,
                     .out = make("qkv", {6, 24})});
    add(LayerNormLinear{.x = x, .gain = gain, .bias = bias, .w = w, .linear_bias = bias10, .out = wide});
    add(LinearResidual{.x = wide, .w = w_back, .bias = bias, .residual = x, .gate = {}, .out = out});
    add(NormQkvRope{.x = x,
                    .norm = {.gain = gain, .scale = {}, .shift = {}},
                    .wq = square,
                    .wk = k_weight,
                    .wv = k_weight,
                    .positions = index6,
                    .cache_rows = index6,
                    .table = rope_table,
                    .q = q,
                    .k_cache = cache,
                    .v_cache = v_cache});
    add(NormGateUpGelu{
        .x = x, .norm = {.gain = gain, .scale = {}, .shift = {}}, .w_gate = w, .w_up = w, .out = other_wide});
    // Two steps of one layer of width 8 on two samples with three action rows of four numbers.
    DenoiseLoop loop{.noise = make("noise", {6, 4}),
                     .actions = make("actions", {6, 4}),
                     .state_token = make("state_token", {2, 8}),
                     .positions = make("loop_positions", {8}, DType::kI32),
                     .key_len = make("loop_key_len", {2}, DType::kI32),
                     .rope = rope_table,
                     .action_in = make("action_in", {8, 4}),
                     .action_in_bias = make("action_in_bias", {2, 8}),
                     .mlp_out = square,
                     .mlp_out_bias = bias,
                     .modulation = {},
                     .final_gain = gain,
                     .action_out = make("action_out", {4, 8}),
                     .action_out_bias = make("action_out_bias", {4}),
                     .layers = {{.input_gain = gain,
                                 .post_gain = gain,
                                 .q = square,
                                 .k = k_weight,
                                 .v = k_weight,
                                 .o = square,
                                 .gate = w,
                                 .up = w,
                                 .down = w_back,
                                 .k_cache = make("loop_k_cache", {2, 9, k_weight.rows()}),
                                 .v_cache = make("loop_v_cache", {2, 9, k_weight.rows()})}},
                     .parts = std::make_shared<const std::vector<Op>>(ops_),
                     .steps = 2};
    add(loop);
    loop.state_token = loop.mlp_out = loop.mlp_out_bias = loop.final_gain = {};
    loop.positions = make("action_positions", {6}, DType::kI32);
    loop.modulation = make("modulation", {6, 24});
    add(loop);
  }

  const std::vector<Op>& ops() const { return ops_; }
  const Recorder& values() const { return recorder_; }

  // The sample of this name.
  template <class Args>
  Args get() const {
    for (const Op& op : ops_) {
      if (const Args* args = std::get_if<Args>(&op.args)) return *args;
    }
    throw std::logic_error("no sample");
  }

 private:
  Tensor make(const std::string& name, const Shape& shape, DType dtype = DType::kF32) {
    return recorder_.input(name, dtype, shape);
  }
  template <class Args>
  void add(Args args) {
    ops_.push_back({std::move(args), "here"});
  }

  Recorder recorder_;
  std::vector<Op> ops_;
};

}  // namespace tendon::test
