// The recorded full-size forward does the work of the network and nothing else: multiply-adds by stage against
// numbers derived by hand, and no operation whose result nothing reads. Nothing is computed; weights have shapes only.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/forward.h"
#include "ops/compose.h"
#include "ops/cost.h"
#include "shape_source.h"

namespace tendon::test {
namespace {

struct Request {
  Variant variant = Variant::kPi0;
  int64_t horizon = 10, prefix_rows = 788, steps = 10;
  Folds folds = {};
  DType activation = DType::kBf16;
  bool taps = false;
  std::optional<Chunking> chunking = {};
};

class Recorded {
 public:
  explicit Recorded(const Request& request) : config_(full_config(request.variant)) {
    config_.horizon = request.horizon;
    const ShapeSource source(config_);
    weights_ = load_weights(source, config_);
    Tensor& patch = weights_.vision.patch.w;  // (W, 3, P, P) as stored
    patch = patch.reshaped({patch.shape[0], patch.shape[1] * patch.shape[2] * patch.shape[3]});
    visit_weights(weights_, config_, [](const WeightSpec& spec, Tensor& tensor) {
      const bool matrix = spec.role != WeightRole::kFloat && spec.role != WeightRole::kTimeOnly;
      if (!matrix || tensor.shape.rank() == 1) tensor.dtype = DType::kF32;
    });
    const auto table = [](const Shape& shape) { return Tensor(DType::kF32, shape, no_memory()); };
    const int64_t width = config_.expert.width;
    tables_.rope = table({1100, config_.head_dim});
    if (!request.folds.time_tables) {
      tables_.time_embedding = table({request.steps, width});
    } else if (config_.pi05()) {
      tables_.modulation = table({(request.steps + 1) * (2 * config_.depth + 1), 3 * width});
    } else {
      tables_.action_in = table({width, request.folds.action_in ? config_.action_dim : width});
      tables_.action_in_bias = table({request.steps + 1, width});
    }
    record_policy(recorder_, {.config = config_,
                              .weights = weights_,
                              .tables = tables_,
                              .folds = request.folds,
                              .schedule = make_schedule(request.steps, TimeRule::kOpenpi),
                              .activation = request.activation,
                              .bucket = {.batch = 1, .images = 3, .prefix_rows = request.prefix_rows},
                              .taps = request.taps,
                              .chunking = request.chunking});
    for (const Op& op : recorder_.ops()) {
      const auto* const loop = std::get_if<DenoiseLoop>(&op.args);
      if (loop == nullptr) {
        ops_.push_back(op);
      } else {
        ops_.insert(ops_.end(), loop->parts->begin(), loop->parts->end());
      }
    }
  }

  // With the denoise loop taken apart.
  const std::vector<Op>& ops() const { return ops_; }
  // The loop where it is one operation, else null.
  const DenoiseLoop* loop() const {
    for (const Op& op : recorder_.ops()) {
      if (const auto* const loop = std::get_if<DenoiseLoop>(&op.args)) return loop;
    }
    return nullptr;
  }
  const Recorder& recorder() const { return recorder_; }

  // TFLOP of the operations below a scope.
  double tflop(std::string_view scope) const {
    double sum = 0;
    for (const Op& op : ops()) {
      if (op.scope == scope || op.scope.starts_with(std::string(scope) + ".")) sum += cost(op).flops;
    }
    return sum * 1e-12;
  }

  // Labels of operations that the actions do not depend on.
  std::set<std::string> dead_ops() const {
    std::set<int32_t> wanted;
    for (size_t i = 0; i < recorder_.values().size(); ++i) {
      if (recorder_.values()[i].name == "actions") wanted.insert(static_cast<int32_t>(i));
    }
    EXPECT_EQ(wanted.size(), 1U);
    std::set<std::string> dead;
    for (auto op = ops().rbegin(); op != ops().rend(); ++op) {
      bool live = false;
      for_each_tensor(*op, [&](const char*, const Tensor& tensor, Access access) {
        if (access != Access::kRead && wanted.contains(tensor.value)) live = true;
      });
      if (!live) {
        dead.insert(op_label(*op));
        continue;
      }
      for_each_tensor(*op, [&](const char*, const Tensor& tensor, Access access) {
        if (access != Access::kWrite && tensor.value >= 0) wanted.insert(tensor.value);
      });
    }
    return dead;
  }

 private:
  ModelConfig config_;
  Weights weights_;
  Tables tables_;
  std::vector<Op> ops_;
  Recorder recorder_;
};

// Attention is counted over the key capacity: the prefix sees the suffix's keys too, 4·S·(H + 1)·2048 more a layer.
double capacity_excess(const Request& request, int64_t layers) {
  const int64_t suffix = request.horizon + (request.variant == Variant::kPi0 ? 1 : 0);
  return 4e-12 * static_cast<double>(request.prefix_rows * suffix * 2048 * layers);
}

TEST(ForwardCost, VisionAndPrefixAtPublishedLengths) {
  const struct {
    int64_t rows;
    double live, full;
  } rows[] = {{788, 3.038, 3.215}, {816, 3.149, 3.332}, {968, 3.756, 3.975}};
  for (const auto& row : rows) {
    for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
      Request request{.variant = variant, .prefix_rows = row.rows};
      const Recorded live(request);
      EXPECT_NEAR(live.tflop("vision"), 0.6605, 6e-5);
      EXPECT_NEAR(live.tflop("prefix") - capacity_excess(request, 17), row.live, 6e-4) << row.rows;
      request.folds.last_prefix_layer_kv_only = false;
      EXPECT_NEAR(Recorded(request).tflop("prefix") - capacity_excess(request, 18), row.full, 6e-4) << row.rows;
    }
  }
}

// π0's state with state_token_once: its projection, and its row in the first step.
double state_tflop(const Recorded& r) { return r.tflop("denoise.state") + r.tflop("denoise.0") - r.tflop("denoise.1"); }

TEST(ForwardCost, DenoiseStepsAsOptimised) {
  const struct {
    Variant variant;
    int64_t horizon, rows;
    double tflop;
  } rows[] = {
      {Variant::kPi0, 10, 788, 0.0747},  {Variant::kPi0, 10, 816, 0.0751},  {Variant::kPi0, 10, 968, 0.0774},
      {Variant::kPi0, 50, 788, 0.3765},  {Variant::kPi0, 50, 968, 0.3898},  {Variant::kPi05, 10, 788, 0.0741},
      {Variant::kPi05, 10, 968, 0.0767}, {Variant::kPi05, 50, 788, 0.3733}, {Variant::kPi05, 50, 968, 0.3866},
  };
  for (const auto& row : rows) {
    Request request{.variant = row.variant, .horizon = row.horizon, .prefix_rows = row.rows};
    const double folded = Recorded(request).tflop("denoise");
    if (row.variant == Variant::kPi05) {
      EXPECT_NEAR(folded, row.tflop, 6e-5) << "pi05 H=" << row.horizon << " S=" << row.rows;
      continue;
    }
    // The numbers for π0 leave out the state (its projection, its row in the first step) and keep action_time_mlp_in
    // whole (2·W inputs).
    request.folds.time_tables = false;
    const Recorded whole(request);
    EXPECT_NEAR(whole.tflop("denoise") - state_tflop(whole), row.tflop, 6e-5)
        << "pi0 H=" << row.horizon << " S=" << row.rows;
    const double saved = 10 * 2e-12 * static_cast<double>(row.horizon) * 1024 * 2048;
    EXPECT_NEAR(folded, whole.tflop("denoise") - saved, 1e-9);
  }
}

// Without state_token_once the state's row goes through every step.
TEST(ForwardCost, DenoiseStepsAsTheReferenceDoesThem) {
  const struct {
    int64_t horizon, rows;
    double tflop;
  } rows[] = {{10, 788, 0.0821}, {10, 968, 0.0850}, {50, 788, 0.3840}, {50, 968, 0.3975}};
  for (const auto& row : rows) {
    Request request{.horizon = row.horizon, .prefix_rows = row.rows};
    request.folds.time_tables = false;
    request.folds.state_token_once = false;
    const double once = 1e-12 * 2 * 32 * 1024;  // the state's projection
    EXPECT_NEAR(Recorded(request).tflop("denoise") - once, row.tflop, 6e-5) << row.horizon << " " << row.rows;
  }
}

TEST(ForwardCost, EveryFoldSavesWork) {
  for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
    const auto total = [](const Recorded& r) { return r.tflop("vision") + r.tflop("prefix") + r.tflop("denoise"); };
    const double all = total(Recorded({.variant = variant}));
    EXPECT_NEAR(all, 3.773, 2e-3);  // with the attention of 17 prefix layers counted over the capacity
    for (const FoldInfo& fold : kFolds) {
      if (fold.name == "pack_valid_tokens") continue;  // changes the rows of a call, not the list
      Request request{.variant = variant};
      request.folds.*fold.field = false;
      if (fold.name == "action_in" || fold.name == "state_token_once") {
        if (variant == Variant::kPi05) continue;
      }
      EXPECT_GT(total(Recorded(request)), all * (1 + 1e-6)) << fold.name;
    }
  }
}

TEST(ForwardCost, NoOperationIsDead) {
  for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
    EXPECT_EQ(Recorded({.variant = variant}).dead_ops(), (std::set<std::string>{}));
    // The check can fail: the rest of the last prefix layer is dead when it is recorded.
    Request request{.variant = variant};
    request.folds.last_prefix_layer_kv_only = false;
    EXPECT_EQ(Recorded(request).dead_ops(), (std::set<std::string>{"prefix.17.attention", "prefix.17.linear_residual",
                                                                   "prefix.17.norm_gate_up_gelu", "prefix.rms_norm"}));
  }
}

TEST(ForwardCost, StepsScaleOnlyTheDenoiseLoop) {
  const Recorded five({.steps = 5});
  const Recorded ten({.steps = 10});
  EXPECT_EQ(five.tflop("vision"), ten.tflop("vision"));
  EXPECT_EQ(five.tflop("prefix"), ten.tflop("prefix"));
  EXPECT_GT(state_tflop(ten), 0);
  EXPECT_EQ(state_tflop(five), state_tflop(ten));
  EXPECT_NEAR(2 * (five.tflop("denoise") - state_tflop(five)), ten.tflop("denoise") - state_tflop(ten), 1e-9);
}

// Every multiplication of the fused forward is in its basic operations too.
TEST(ForwardCost, ExpansionKeepsTheFlops) {
  const Recorded recorded({.variant = Variant::kPi05});
  Recorder basic(recorded.recorder().values());
  double fused = 0;
  for (const Op& op : recorded.ops()) {
    fused += cost(op).flops;
    if (!expand(op, basic)) basic.add(op);
  }
  double sum = 0;
  for (const Op& op : basic.ops()) sum += cost(op).flops;
  EXPECT_NEAR(sum / fused, 1.0, 1e-12);
  EXPECT_GT(basic.ops().size(), recorded.ops().size());
}

// Weight bytes that ten bf16 steps stream: 0.623 GB of expert weights each, the projections in f32 on top.
TEST(ForwardCost, ExpertWeightBytesOfAStep) {
  for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
    const Recorded recorded({.variant = variant, .steps = 1});
    double bytes = 0;
    for (const Op& op : recorded.ops()) {
      if (!op.scope.starts_with("denoise.0.")) continue;
      for_each_tensor(op, [&](const char*, const Tensor& tensor, Access) {
        if (tensor.value < 0 && tensor.dtype == DType::kBf16) bytes += static_cast<double>(tensor.bytes());
      });
    }
    EXPECT_NEAR(bytes * 1e-9, 0.623, 5e-4) << variant_name(variant);
  }
}

// With a previous chunk too, but for rows at another time than the others.
TEST(Forward, LoopWithAPreviousChunkIsOneOperation) {
  for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
    for (const ChunkingMode mode : {ChunkingMode::kGuided, ChunkingMode::kInpaint, ChunkingMode::kTrained}) {
      const Recorded recorded({.variant = variant, .chunking = Chunking{.mode = mode, .max_guidance = 5.0F}});
      const DenoiseLoop* const loop = recorded.loop();
      ASSERT_EQ(loop != nullptr, mode != ChunkingMode::kTrained);
      if (loop == nullptr) continue;
      const bool is_guided = mode == ChunkingMode::kGuided;
      EXPECT_TRUE(loop->previous.defined());
      EXPECT_EQ(loop->guidance.defined(), is_guided);
      EXPECT_EQ(loop->frozen.defined(), !is_guided);
      ASSERT_EQ(loop->times.size(), 10U);
      EXPECT_EQ(loop->times[0], 1.0F);
      EXPECT_NEAR(loop->times[9], 0.1F, 1e-6);
      std::vector<float> scales;
      for (const Op& part : *loop->parts) {
        if (const auto* const guidance = std::get_if<Guidance>(&part.args)) scales.push_back(guidance->scale);
      }
      EXPECT_EQ(loop->guidance_scales, scales);
      EXPECT_EQ(scales.size(), is_guided ? 10U : 0U);
      // What the loop writes are the call's actions, and nothing of chunking is left outside of it.
      EXPECT_EQ(recorded.recorder().values()[static_cast<size_t>(loop->actions.value)].name, "actions");
      EXPECT_TRUE(std::holds_alternative<DenoiseLoop>(recorded.recorder().ops().back().args));
      for (const Op& op : recorded.recorder().ops()) EXPECT_FALSE(std::holds_alternative<EulerStep>(op.args));
    }
  }
}

TEST(Forward, LoopIsOneOperationUnlessSomebodyLooksInside) {
  for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
    const Recorded recorded({.variant = variant});
    const DenoiseLoop* const loop = recorded.loop();
    ASSERT_NE(loop, nullptr);
    EXPECT_EQ(std::ssize(loop->layers), 18);
    EXPECT_EQ(loop->steps, 10);
    EXPECT_EQ(loop->state_token.defined(), variant == Variant::kPi0);
    EXPECT_EQ(loop->positions.elements(), variant == Variant::kPi0 ? 11 : 10);
    // It costs what its parts cost, and they are the same operations as without it.
    const Recorded looked_into({.variant = variant, .taps = true});
    EXPECT_EQ(looked_into.loop(), nullptr);
    double parts = 0;
    for (const Op& op : *loop->parts) parts += cost(op).flops;
    EXPECT_EQ(cost(Op{*loop, "denoise"}).flops, parts);
    EXPECT_GE(looked_into.ops().size(), recorded.ops().size());  // π0's taps gather the action rows of the first step
    Recorder expanded(recorded.recorder().values());
    ASSERT_TRUE(expand(Op{*loop, "denoise"}, expanded));
    EXPECT_EQ(expanded.ops().size(), loop->parts->size());
    // Both read the same weights and planned values, and give the same actions.
    std::set<std::pair<int32_t, const void*>> read, part_read;
    for_each_tensor(Op{*loop, "denoise"}, [&](const char*, const Tensor& t, Access access) {
      if (access == Access::kRead) read.insert({t.value, t.data});
    });
    std::set<int32_t> part_written;
    for (const Op& part : *loop->parts) {
      for_each_tensor(part, [&](const char*, const Tensor& t, Access access) {
        if (access == Access::kRead) part_read.insert({t.value, t.data});
        if (access != Access::kRead) part_written.insert(t.value);
      });
    }
    EXPECT_TRUE(std::ranges::includes(part_read, read));
    EXPECT_TRUE(part_written.contains(loop->actions.value));

    Folds no_tables;
    no_tables.time_tables = false;
    EXPECT_EQ(Recorded({.variant = variant, .folds = no_tables}).loop(), nullptr);
    Folds unpacked;
    unpacked.pack_valid_tokens = false;
    EXPECT_EQ(Recorded({.variant = variant, .folds = unpacked}).loop(), nullptr);
  }
}

}  // namespace
}  // namespace tendon::test
