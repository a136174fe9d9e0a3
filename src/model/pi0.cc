// The whole call: vision, prefix, denoise loop.
#include <cmath>
#include <memory>
#include <optional>

#include "model/forward.h"

namespace tendon {
namespace {

// Shared by the stages of one recording.
struct Call {
  Recorder& r;
  const ForwardSpec& spec;
  GemmaContext prefix, suffix, first;  // first: the suffix of the first step, where it differs

  const ModelConfig& config() const { return spec.config; }
  Tensor temporary(DType dtype, int64_t rows, int64_t cols) const { return r.temporary(dtype, {rows, cols}); }
  void tap(const Tensor& x, const std::string& name) const {
    if (spec.taps) r.keep(x, name);
  }
};

void declare_inputs(Call& call) {
  Recorder& r = call.r;
  const ForwardSpec& spec = call.spec;
  const int64_t batch = spec.bucket.batch;
  const int64_t prefix_rows = batch * spec.bucket.prefix_rows;
  const int64_t suffix_rows = batch * spec.suffix_rows(1);
  const auto index = [&](const char* name, int64_t n) { return r.input(name, DType::kI32, {n}); };

  Tensor mask;
  if (!spec.folds.pack_valid_tokens) mask = r.input("prefix_mask", DType::kU8, {batch, spec.cache_capacity()});
  call.prefix.positions = index("prefix_positions", prefix_rows);
  call.prefix.cache_rows = index("prefix_cache_rows", prefix_rows);
  call.prefix.key_len = index("prefix_len", batch);
  call.prefix.key_mask = mask;
  call.prefix.keeps_operands = true;

  call.suffix.positions = index("suffix_positions", suffix_rows);
  call.suffix.cache_rows = index("suffix_cache_rows", suffix_rows);
  call.suffix.key_len = index("suffix_len", batch);
  call.suffix.key_mask = mask;
  call.suffix.extra_keys = static_cast<int32_t>(spec.suffix_rows(1));
  call.suffix.leading_block = spec.state_in_step(1) ? 1 : 0;

  if (spec.first_step_differs()) {
    call.first.positions = index("first_positions", batch * spec.suffix_rows(0));
    call.first.cache_rows = index("first_cache_rows", batch * spec.suffix_rows(0));
    call.first.key_len = call.prefix.key_len;
    call.first.key_mask = mask;
    call.first.extra_keys = static_cast<int32_t>(spec.suffix_rows(0));
    call.first.leading_block = 1;
  }
  for (int64_t layer = 0; layer < call.config().depth; ++layer) {
    const Shape shape{batch, spec.cache_capacity(), call.config().kv_width()};
    call.prefix.k_cache.push_back(r.kept("k_cache." + std::to_string(layer), spec.activation, shape));
    call.prefix.v_cache.push_back(r.kept("v_cache." + std::to_string(layer), spec.activation, shape));
  }
  call.suffix.k_cache = call.first.k_cache = call.prefix.k_cache;
  call.suffix.v_cache = call.first.v_cache = call.prefix.v_cache;
}

// Packs image features and scaled token embeddings, runs the language model, leaves its keys and values in the cache.
void record_prefix(const Call& call, const Tensor& features) {
  Recorder& r = call.r;
  const ModelConfig& c = call.config();
  const int64_t rows = call.spec.bucket.batch * call.spec.bucket.prefix_rows;
  const Tensor sources = r.input("prefix_sources", DType::kI32, {rows});
  Tensor x = call.temporary(call.spec.activation, rows, c.prefix.width);  // (B·S, W)
  r.add(GatherPrefix{.features = features,
                     .embedding = call.spec.weights.embedding,
                     .sources = sources,
                     .out = x,
                     .scale = std::sqrt(static_cast<float>(c.prefix.width))});
  call.tap(x, "prefix_embeds");
  for (int64_t i = 0; i < c.depth; ++i) {
    const Recorder::Scope scope = r.scope(std::to_string(i));
    const bool kv_only = i + 1 == c.depth && call.spec.folds.last_prefix_layer_kv_only;
    const GemmaLayerWeights& layer = call.spec.weights.prefix.layers[static_cast<size_t>(i)];
    x = record_gemma_layer(r, call.spec, layer, x, call.prefix, i, {}, {}, kv_only);
    if (!kv_only) call.tap(x, "prefix.layer." + std::to_string(i));
  }
  if (x.defined()) {
    const Tensor unused = call.temporary(call.spec.activation, rows, c.prefix.width);
    r.add(RmsNorm{.x = x, .gain = call.spec.weights.prefix.final_norm.gain, .out = unused, .eps = c.eps});
  }
}

// π0's state token, in f32.
Tensor record_state(const Call& call) {
  const Tensor state = call.r.input("state", DType::kF32, {call.spec.bucket.batch, call.config().action_dim});
  const LinearWeights& w = call.spec.weights.state_in;
  const Tensor token = call.temporary(DType::kF32, state.rows(), call.config().expert.width);  // (B, W)
  call.r.add(Linear{.x = state, .w = w.w, .bias = w.bias, .out = token});
  return token;
}

// The modulation of every expert norm at one step: from the table, or computed from the time embedding. Step N stands
// for time 0.
class StepModulation {
 public:
  StepModulation(const Call& call, int64_t step) : call_(call), step_(step) {
    if (!call.config().pi05() || call.spec.folds.time_tables) return;
    const Tensor e = call.spec.tables.time_embedding.row_range(step, 1);
    condition_ = mlp(mlp(e, call.spec.weights.time_mlp_in), call.spec.weights.time_mlp_out);
  }

  // Norm `index`: 2·layer for the input norm, 2·layer + 1 for the post-attention norm, 2·depth for the final one.
  Modulation at(int64_t index, const NormWeights& norm) const {
    if (!call_.config().pi05()) return {};
    const int64_t width = call_.config().expert.width;
    Tensor m;
    if (condition_.defined()) {
      m = call_.temporary(DType::kF32, 1, 3 * width);
      call_.r.add(Linear{.x = condition_, .w = norm.modulation.w, .bias = norm.modulation.bias, .out = m});
    } else {
      m = call_.spec.tables.modulation.row_range(step_ * (2 * call_.config().depth + 1) + index, 1);
    }
    return {.scale = m.col_range(0, width), .shift = m.col_range(width, width), .gate = m.col_range(2 * width, width)};
  }

 private:
  Tensor mlp(const Tensor& x, const LinearWeights& w) const {
    const Tensor out = call_.temporary(DType::kF32, 1, w.w.rows());
    call_.r.add(Linear{.x = x, .w = w.w, .bias = w.bias, .out = out, .activation = Activation::kSilu});
    return out;
  }

  const Call& call_;
  int64_t step_;
  Tensor condition_;  // (1, W) f32
};

// What the step from x_t shares with those before it.
struct StepContext {
  int64_t step = 0;
  Tensor frozen;  // (B·H) i32: rows at time 0; undefined when all rows have the step's time
};

// x_t → the action tokens of the suffix, in f32.
Tensor record_action_tokens(const Call& call, const Tensor& x_t, const StepContext& at) {
  Recorder& r = call.r;
  const Weights& w = call.spec.weights;
  const Tables& tables = call.spec.tables;
  const int64_t rows = x_t.rows();
  const int64_t width = call.config().expert.width;
  const auto project = [&](const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation) {
    const Tensor out = call.temporary(DType::kF32, rows, weight.rows());  // (B·H, W)
    r.add(Linear{.x = x, .w = weight, .bias = bias, .out = out, .activation = activation});
    return out;
  };
  if (call.config().pi05()) return project(x_t, w.action_in.w, w.action_in.bias, Activation::kNone);

  const bool folded = call.spec.folds.time_tables && call.spec.folds.action_in;
  const Tensor u = folded ? x_t : project(x_t, w.action_in.w, w.action_in.bias, Activation::kNone);
  const auto with_time = [&](int64_t step) {
    if (call.spec.folds.time_tables)
      return project(u, tables.action_in, tables.action_in_bias.row_range(step, 1), Activation::kSilu);
    const Tensor u_and_time = call.temporary(DType::kF32, rows, 2 * width);
    r.add(ConcatRow{.x = u, .row = tables.time_embedding.row_range(step, 1), .out = u_and_time});
    return project(u_and_time, w.time_mlp_in.w, w.time_mlp_in.bias, Activation::kSilu);
  };
  Tensor hidden = with_time(at.step);
  if (at.frozen.defined()) {
    const Tensor both = call.temporary(DType::kF32, rows, width);
    r.add(SelectRows{.x = hidden, .y = with_time(call.spec.steps()), .chosen = at.frozen, .out = both});
    hidden = both;
  }
  return project(hidden, w.time_mlp_out.w, w.time_mlp_out.bias, Activation::kNone);
}

// Index buffers that place state and action rows in a suffix that has both.
struct SuffixRows {
  Tensor state_token, state_rows, action_rows;
};

Tensor record_suffix(const Call& call, const Tensor& action_tokens, int64_t step, const SuffixRows& layout) {
  const ForwardSpec& spec = call.spec;
  const int64_t rows = spec.bucket.batch * spec.suffix_rows(step);
  const Tensor x = call.temporary(spec.activation, rows, action_tokens.cols());  // (B·n, W)
  if (!spec.state_in_step(step)) {
    call.r.add(Cast{.x = action_tokens, .out = x});
    return x;
  }
  const Tensor both = call.temporary(DType::kF32, rows, action_tokens.cols());
  call.r.add(ScatterRows{.x = layout.state_token, .rows = layout.state_rows, .out = both});
  call.r.add(ScatterRows{.x = action_tokens, .rows = layout.action_rows, .out = both});
  call.r.add(Cast{.x = both, .out = x});
  return x;
}

// The action rows of a suffix.
Tensor action_rows(const Call& call, const Tensor& x, int64_t step, const SuffixRows& layout) {
  if (!call.spec.state_in_step(step)) return x;
  const Tensor rows = call.temporary(x.dtype, call.spec.bucket.batch * call.config().horizon, x.cols());
  call.r.add(GatherRows{.x = x, .rows = layout.action_rows, .out = rows});
  return rows;
}

// One evaluation of the expert: x_t (B·H, A) → velocity (B·H, A) f32.
Tensor record_velocity(const Call& call, const Tensor& x_t, const StepContext& at, const SuffixRows& layout) {
  const int64_t step = at.step;
  Recorder& r = call.r;
  const ForwardSpec& spec = call.spec;
  const ModelConfig& c = call.config();
  const GemmaWeights& expert = spec.weights.expert;
  const std::string at_step = "." + std::to_string(step);
  const StepModulation at_time(call, step);
  std::optional<StepModulation> at_zero;
  if (at.frozen.defined()) at_zero.emplace(call, spec.steps());
  const auto modulation = [&](int64_t index, const NormWeights& norm) {
    Modulation m = at_time.at(index, norm);
    if (!at_zero || !c.pi05()) return m;
    const Modulation zero = at_zero->at(index, norm);
    m.frozen = at.frozen, m.frozen_scale = zero.scale, m.frozen_shift = zero.shift, m.frozen_gate = zero.gate;
    return m;
  };

  // The state's keys and values do not depend on time or actions: the first step leaves them in the cache.
  const bool first = step == 0 && spec.first_step_differs();
  const GemmaContext& context = first ? call.first : call.suffix;
  const auto tap = [&](const Tensor& value, const std::string& name) {
    if (spec.taps) call.tap(first ? action_rows(call, value, step, layout) : value, name + at_step);
  };

  Tensor x = record_suffix(call, record_action_tokens(call, x_t, at), step, layout);  // (B·n, W)
  tap(x, "suffix_embeds");
  for (int64_t i = 0; i < c.depth; ++i) {
    const Recorder::Scope scope = r.scope(std::to_string(i));
    const GemmaLayerWeights& layer = expert.layers[static_cast<size_t>(i)];
    x = record_gemma_layer(r, spec, layer, x, context, i, modulation(2 * i, layer.input_norm),
                           modulation(2 * i + 1, layer.post_norm), false);
    tap(x, "expert.layer." + std::to_string(i));
  }
  Tensor out;  // (B·n, W)
  if (c.pi05()) {
    out = record_modulated_norm(r, x, modulation(2 * c.depth, expert.final_norm), c.eps);
  } else {
    out = call.temporary(spec.activation, x.rows(), c.expert.width);
    r.add(RmsNorm{.x = x, .gain = expert.final_norm.gain, .out = out, .eps = c.eps});
  }
  tap(out, "expert_out");
  out = action_rows(call, out, step, layout);                                     // (B·H, W)
  const Tensor velocity = call.temporary(DType::kF32, x_t.rows(), c.action_dim);  // (B·H, A)
  r.add(Linear{.x = out, .w = spec.weights.action_out.w, .bias = spec.weights.action_out.bias, .out = velocity});
  call.tap(velocity, "v" + at_step);
  return velocity;
}

// Nobody looks inside, what depends on the time alone is tabulated, and all rows have the same time.
bool can_be_one_operation(const ForwardSpec& spec) {
  const bool rows_at_time_0 = spec.chunking && spec.chunking->mode == ChunkingMode::kTrained;
  return !spec.taps && !rows_at_time_0 && spec.folds.pack_valid_tokens && spec.folds.time_tables &&
         (spec.config.pi05() || spec.folds.action_in);
}

// The loop as one operation.
DenoiseLoop loop_of(const Call& call, const SuffixRows& layout, const Tensor& noise, const Tensor& actions,
                    std::vector<Op> parts) {
  const ModelConfig& c = call.config();
  const Weights& w = call.spec.weights;
  const Tables& tables = call.spec.tables;
  const bool pi05 = c.pi05();
  const int64_t steps = call.spec.steps();
  const GemmaContext& context = call.spec.first_step_differs() ? call.first : call.suffix;
  DenoiseLoop loop{.noise = noise,
                   .actions = actions,
                   .state_token = layout.state_token,
                   .positions = context.positions,
                   .key_len = context.key_len,
                   .rope = tables.rope,
                   .action_in = pi05 ? w.action_in.w : tables.action_in,
                   .action_in_bias = pi05 ? w.action_in.bias : tables.action_in_bias.row_range(0, steps),
                   .mlp_out = pi05 ? Tensor{} : w.time_mlp_out.w,
                   .mlp_out_bias = pi05 ? Tensor{} : w.time_mlp_out.bias,
                   .modulation = pi05 ? tables.modulation.row_range(0, steps * (2 * c.depth + 1)) : Tensor{},
                   .final_gain = w.expert.final_norm.gain,
                   .action_out = w.action_out.w,
                   .action_out_bias = w.action_out.bias,
                   .layers = {},
                   .weights_are_codes = w.expert.rounded_to_i8,
                   .parts = std::make_shared<const std::vector<Op>>(std::move(parts)),
                   .steps = steps,
                   .eps = c.eps,
                   .dt = call.spec.schedule.dt,
                   .scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim))};
  for (size_t i = 0; i < w.expert.layers.size(); ++i) {
    const GemmaLayerWeights& layer = w.expert.layers[i];
    loop.layers.push_back({.input_gain = layer.input_norm.gain,
                           .post_gain = layer.post_norm.gain,
                           .q = layer.q,
                           .k = layer.k,
                           .v = layer.v,
                           .o = layer.o,
                           .gate = layer.gate,
                           .up = layer.up,
                           .down = layer.down,
                           .k_cache = context.k_cache[i],
                           .v_cache = context.v_cache[i]});
  }
  return loop;
}

}  // namespace

void record_policy(Recorder& r, const ForwardSpec& spec) {
  const ModelConfig& c = spec.config;
  Call call{r, spec, {}, {}, {}};
  declare_inputs(call);
  {
    const VisionConfig& v = c.vision;
    const Tensor images =
        r.input("images", spec.bucket.image_dtype, {spec.bucket.images, v.image_size, v.image_size, 3});
    Tensor features = call.temporary(spec.activation, 0, c.prefix.width);
    if (spec.bucket.images > 0) {
      const Recorder::Scope scope = r.scope("vision");
      features = record_vision(r, spec, images);  // (images·T, W)
    }
    const Recorder::Scope scope = r.scope("prefix");
    record_prefix(call, features);
  }
  const Recorder::Scope scope = r.scope("denoise");
  SuffixRows layout;
  if (!c.pi05()) {
    const Recorder::Scope state_scope = r.scope("state");
    layout.state_token = record_state(call);
    layout.state_rows = r.input("state_suffix_rows", DType::kI32, {spec.bucket.batch});
    layout.action_rows = r.input("action_suffix_rows", DType::kI32, {spec.bucket.batch * c.horizon});
  }
  const Tensor noise = r.input("noise", DType::kF32, {spec.bucket.batch * c.horizon, c.action_dim});  // (B·H, A)
  const size_t first_op = r.ops().size();
  const ChunkConstraint chunk(r, spec, noise);
  Tensor x = noise;
  const int64_t steps = spec.steps();
  Tensor actions;
  for (int64_t step = 0; step < steps; ++step) {
    const Recorder::Scope step_scope = r.scope(std::to_string(step));
    x = chunk.constrained(x, step);
    const Tensor velocity = record_velocity(call, x, {step, chunk.rows_at_time_0()}, layout);
    const bool last = step + 1 == steps;
    if (last) actions = r.output("actions", DType::kF32, x.shape);
    const Tensor next = last && !chunk.sets_rows() ? actions : call.temporary(DType::kF32, x.rows(), x.cols());
    r.add(EulerStep{.x = x, .v = chunk.guided(x, velocity, step), .out = next, .dt = spec.schedule.dt});
    if (!last) call.tap(next, "x." + std::to_string(step));
    x = next;
  }
  if (chunk.sets_rows()) chunk.finish(x, actions);
  if (!can_be_one_operation(spec)) return;
  DenoiseLoop loop = loop_of(call, layout, noise, actions, r.take_ops(first_op));
  chunk.describe(loop);
  r.add(std::move(loop));
}

}  // namespace tendon
