#include "ops/compose.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ops/cost.h"
#include "samples.h"

namespace tendon::test {
namespace {

std::vector<std::string> parts_of(const Op& op, const Samples& samples) {
  Recorder r(samples.values().values());
  std::vector<std::string> names;
  if (!expand(op, r)) return names;
  for (const Op& part : r.ops()) names.emplace_back(op_name(part));
  return names;
}

using Names = std::vector<std::string>;

TEST(Compose, SequenceOfEveryFusedOperation) {
  const Samples s;
  EXPECT_EQ(parts_of({s.get<PatchEmbed>(), "here"}, s), (Names{"patchify", "linear", "add_rows"}));
  EXPECT_EQ(parts_of({s.get<LayerNormQkv>(), "here"}, s), (Names{"layer_norm", "linear", "linear", "linear"}));
  EXPECT_EQ(parts_of({s.get<LayerNormLinear>(), "here"}, s), (Names{"layer_norm", "linear"}));
  EXPECT_EQ(parts_of({s.get<LinearResidual>(), "here"}, s), (Names{"linear", "residual_add"}));
  LinearResidual gated = s.get<LinearResidual>();
  gated.gate = s.get<LinearResidual>().bias;
  EXPECT_EQ(parts_of({gated, "here"}, s), (Names{"linear", "gated_residual"}));
  EXPECT_EQ(parts_of({s.get<NormQkvRope>(), "here"}, s),
            (Names{"rms_norm", "linear", "rope", "linear", "rope", "scatter_rows", "linear", "scatter_rows"}));
  NormQkvRope keys_only = s.get<NormQkvRope>();
  keys_only.wq = keys_only.q = {};
  keys_only.norm = {.gain = {}, .scale = s.get<RmsNorm>().gain, .shift = s.get<AdaRmsNorm>().shift};
  EXPECT_EQ(parts_of({keys_only, "here"}, s),
            (Names{"ada_rms_norm", "linear", "rope", "scatter_rows", "linear", "scatter_rows"}));
  EXPECT_EQ(parts_of({s.get<NormGateUpGelu>(), "here"}, s), (Names{"rms_norm", "linear", "linear", "gelu_mul"}));
}

TEST(Compose, CodesAreMadeOnce) {
  const Samples s;
  const Tensor factors = s.get<LayerNormLinear>().linear_bias;
  EXPECT_EQ(parts_of({s.get<AttentionToCodes>(), "here"}, s), (Names{"attention", "cast"}));
  LayerNormLinear linear = s.get<LayerNormLinear>();
  linear.factors = factors, linear.out.dtype = DType::kI8;
  EXPECT_EQ(parts_of({linear, "here"}, s), (Names{"layer_norm", "linear", "cast"}));
  NormGateUpGelu gate_up = s.get<NormGateUpGelu>();
  gate_up.factors = factors, gate_up.out.dtype = DType::kI8;
  EXPECT_EQ(parts_of({gate_up, "here"}, s), (Names{"rms_norm", "linear", "linear", "gelu_mul", "cast"}));
  LinearResidual residual = s.get<LinearResidual>();
  residual.w.dtype = DType::kI8;
  EXPECT_EQ(parts_of({residual, "here"}, s), (Names{"cast", "linear", "residual_add"}));
  residual.x.dtype = DType::kI8;  // they are there already
  EXPECT_EQ(parts_of({residual, "here"}, s), (Names{"linear", "residual_add"}));
}

TEST(Compose, BasicOperationsStay) {
  const Samples s;
  std::set<std::string_view> fused;
  for (const Op& op : s.ops()) {
    Recorder r(s.values().values());
    if (expand(op, r)) {
      fused.insert(op_name(op));
    } else {
      EXPECT_TRUE(r.ops().empty()) << op_name(op);
    }
  }
  EXPECT_EQ(fused.size(), 8);
}

TEST(Compose, PartsCarryTheScopeOfTheWhole) {
  const Samples s;
  Recorder r(s.values().values());
  ASSERT_TRUE(expand({s.get<LinearResidual>(), "prefix.3"}, r));
  for (const Op& part : r.ops()) EXPECT_EQ(part.scope, "prefix.3.linear_residual");
  EXPECT_EQ(r.current_scope(), "");
}

// What the whole reads and writes, its parts read and write; everything else is temporary. The parts of a denoise loop
// are recorded, not composed: model_test looks at real ones.
TEST(Compose, PartsTouchExactlyTheTensorsOfTheWhole) {
  const Samples s;
  const auto known = static_cast<int32_t>(s.values().values().size());
  for (const Op& op : s.ops()) {
    Recorder r(s.values().values());
    if (std::holds_alternative<DenoiseLoop>(op.args) || !expand(op, r)) continue;
    std::set<int32_t> read, written, part_read, part_written;
    for_each_tensor(op, [&](const char*, const Tensor& t, Access access) {
      (access == Access::kRead ? read : written).insert(t.value);
    });
    for (const Op& part : r.ops()) {
      for_each_tensor(part, [&](const char*, const Tensor& t, Access access) {
        if (t.value < known) (access == Access::kRead ? part_read : part_written).insert(t.value);
      });
    }
    EXPECT_EQ(part_read, read) << op_name(op);
    EXPECT_EQ(part_written, written) << op_name(op);
  }
}

TEST(Compose, TemporariesHaveTheTypeOfTheResidualStream) {
  Samples s;
  NormGateUpGelu op = s.get<NormGateUpGelu>();
  op.x.dtype = op.out.dtype = DType::kBf16;
  Recorder r(s.values().values());
  ASSERT_TRUE(expand({op, ""}, r));
  for (size_t i = s.values().values().size(); i < r.values().size(); ++i) {
    EXPECT_EQ(r.values()[i].dtype, DType::kBf16);
    EXPECT_EQ(r.values()[i].kind, Value::Kind::kTemporary);
  }
}

TEST(Cost, FlopsOfAFusedOperationAreThoseOfItsParts) {
  const Samples s;
  for (const Op& op : s.ops()) {
    Recorder r(s.values().values());
    if (!expand(op, r)) continue;
    double sum = 0;
    for (const Op& part : r.ops()) sum += cost(part).flops;
    EXPECT_EQ(cost(op).flops, sum) << op_name(op);
    EXPECT_GT(sum, 0) << op_name(op);
    EXPECT_GT(cost(op).bytes(), 0) << op_name(op);
  }
  NormQkvRope keys_only = s.get<NormQkvRope>();
  keys_only.wq = keys_only.q = {};
  EXPECT_EQ(cost({keys_only, ""}).flops, 2.0 * 6 * 8 * (4 + 4));
}

TEST(Cost, HandCounts) {
  const Samples s;
  const Cost linear = cost({s.get<Linear>(), ""});
  EXPECT_EQ(linear.flops, 2.0 * 6 * 10 * 8);
  EXPECT_EQ(linear.read_bytes, 4.0 * (6 * 8 + 10 * 8 + 10));
  EXPECT_EQ(linear.write_bytes, 4.0 * 6 * 10);
  // q (2, 3, 2·4) against 12 keys: two products of 2·3·2·4·12 multiply-adds.
  EXPECT_EQ(cost({s.get<Attention>(), ""}).flops, 2.0 * 2 * (2 * 3 * 2 * 4 * 12));
  EXPECT_EQ(cost({s.get<ResidualAdd>(), ""}).flops, 0);
  EXPECT_EQ(cost({s.get<ResidualAdd>(), ""}).bytes(), 4.0 * 3 * 48);
}

TEST(Cost, LookUpsMoveTheRowsTheyTouch) {
  const Samples s;
  EXPECT_EQ(cost({s.get<GatherRows>(), ""}).read_bytes, 4.0 * (48 + 6));  // not the 24 rows of the source
  EXPECT_EQ(cost({s.get<ScatterRows>(), ""}).write_bytes, 4.0 * 48);
  EXPECT_EQ(cost({s.get<GatherPrefix>(), ""}).read_bytes, 4.0 * (32 + 48 + 6));
  const Cost qkv = cost({s.get<NormQkvRope>(), ""});
  EXPECT_EQ(qkv.write_bytes, 4.0 * (6 * 8 + 2 * 6 * 4));                    // q and six rows of either cache
  EXPECT_EQ(cost({s.get<Rope>(), ""}).read_bytes, 4.0 * (48 + 6 + 6 * 4));  // six rows of the table's twenty
}

TEST(Cost, WeightsAreWhatNoOperationWrites) {
  const Samples s;
  Linear linear = s.get<Linear>();
  EXPECT_EQ(cost({linear, ""}).weight_bytes, 0);
  float memory = 0;
  linear.w.value = -1;
  linear.w.data = &memory;
  const Cost with_weight = cost({linear, ""});
  EXPECT_EQ(with_weight.weight_bytes, 4.0 * 10 * 8);
  EXPECT_EQ(with_weight.read_bytes, 4.0 * (6 * 8 + 10 * 8 + 10));
  Cost sum;
  sum += with_weight;
  sum += with_weight;
  EXPECT_EQ(sum.weight_bytes, 2 * with_weight.weight_bytes);
}

}  // namespace
}  // namespace tendon::test
