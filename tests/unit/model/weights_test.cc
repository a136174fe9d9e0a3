#include "model/weights/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "model/weights/names.h"
#include "shape_source.h"

namespace tendon::test {
namespace {

TEST(StoredLayout, HasTheTensorsOfThePublishedCheckpoints) {
  for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
    const std::vector<WeightSpec> layout = stored_layout(full_config(variant));
    EXPECT_EQ(layout.size(), variant == Variant::kPi0 ? 777U : 812U);
    std::set<std::string> names;
    int64_t live = 0;
    int64_t head = 0;
    for (const WeightSpec& spec : layout) {
      EXPECT_TRUE(names.insert(spec.name).second) << spec.name << " twice";
      (spec.name == kExpertHead ? head : live) += spec.shape.elements();
    }
    EXPECT_EQ(live, variant == Variant::kPi0 ? 3238048528 : 3353433872);
    EXPECT_EQ(head, 263323648);
    EXPECT_TRUE(std::ranges::is_sorted(layout, {}, &WeightSpec::name));
    EXPECT_EQ(stored_layout(tiny_config(variant)).size(), variant == Variant::kPi0 ? 107U : 112U);
  }
}

// Parts whose parameter counts are published.
TEST(StoredLayout, PartsHaveThePublishedParameterCounts) {
  const auto count = [](Variant variant, auto&& belongs) {
    int64_t sum = 0;
    for (const WeightSpec& spec : stored_layout(full_config(variant))) {
      if (belongs(spec.name)) sum += spec.shape.elements();
    }
    return sum;
  };
  const auto begins = [](const std::string& prefix) {
    return [prefix](const std::string& name) { return name.starts_with(prefix); };
  };
  const auto outside = [](const std::string& name) { return !name.starts_with("paligemma_with_expert."); };
  const auto dense = [](const std::string& name) { return name.find(".dense.") != std::string::npos; };
  for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
    EXPECT_EQ(count(variant, begins(kVision)), 412442352);
    EXPECT_EQ(count(variant, begins(kProjector)), 2361344);
    EXPECT_EQ(count(variant, begins(kPrefix)), 1981884416);
    EXPECT_EQ(count(variant, begins(kEmbedding)), 526647296);
  }
  EXPECT_EQ(count(Variant::kPi0, begins(kExpert)), 311464960);
  EXPECT_EQ(count(Variant::kPi05, begins(kExpert)), 427932672);
  EXPECT_EQ(count(Variant::kPi05, dense), 116505600);
  EXPECT_EQ(count(Variant::kPi0, dense), 0);
  EXPECT_EQ(count(Variant::kPi0, outside), 3248160);
  EXPECT_EQ(count(Variant::kPi05, outside), 2165792);
}

TEST(VisitWeights, RolesSayWhatIsDeadAndWhatIsTimeOnly) {
  std::set<std::string> dead;
  std::set<std::string> time_only;
  Weights weights;
  visit_weights(weights, full_config(Variant::kPi05), [&](const WeightSpec& spec, Tensor&) {
    if (spec.role == WeightRole::kDead) dead.insert(spec.name);
    if (spec.role == WeightRole::kTimeOnly) time_only.insert(spec.name);
    if (spec.name.ends_with("bias") && spec.role != WeightRole::kTimeOnly) {
      EXPECT_EQ(spec.role, WeightRole::kFloat) << spec.name;
    }
  });
  const std::string last = kPrefix + "layers.17.";
  EXPECT_EQ(dead, (std::set<std::string>{last + "self_attn.q_proj.weight", last + "self_attn.o_proj.weight",
                                         last + "mlp.gate_proj.weight", last + "mlp.up_proj.weight",
                                         last + "mlp.down_proj.weight", last + "post_attention_layernorm.weight",
                                         kPrefix + "norm.weight"}));
  EXPECT_EQ(time_only.size(), 37U * 2U + 4U);
  EXPECT_TRUE(time_only.contains(kExpert + "norm.dense.weight"));
  EXPECT_TRUE(time_only.contains("time_mlp_out.bias"));
}

TEST(LoadWeights, GivesEveryTensorToItsPlace) {
  for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
    const ModelConfig config = tiny_config(variant);
    const ShapeSource source(config);
    Weights weights = load_weights(source, config);
    size_t visited = 0;
    visit_weights(weights, config, [&](const WeightSpec& spec, Tensor& tensor) {
      ++visited;
      EXPECT_TRUE(tensor.defined()) << spec.name;
      EXPECT_EQ(tensor.shape, spec.shape) << spec.name;
    });
    EXPECT_EQ(visited, source.names().size());
    EXPECT_EQ(weights.expert.layers.size(), 3U);
    EXPECT_EQ(weights.expert.final_norm.gain.defined(), variant == Variant::kPi0);
    EXPECT_EQ(weights.expert.final_norm.modulation.w.defined(), variant == Variant::kPi05);
    EXPECT_EQ(weights.state_in.w.defined(), variant == Variant::kPi0);
  }
}

TEST(LoadWeights, TheExpertHeadIsOptional) {
  const ModelConfig config = tiny_config(Variant::kPi0);
  ShapeSource source(config);
  source.set(kExpertHead, {512, 32});
  EXPECT_NO_THROW(load_weights(source, config));
  source.set(kExpertHead, {1, 1});  // never looked at
  EXPECT_NO_THROW(load_weights(source, config));
}

std::string refusal(const ShapeSource& source, const ModelConfig& config) {
  return message_of(ErrorKind::kBadInput, [&] { load_weights(source, config); });
}

TEST(LoadWeights, MissingUnexpectedAndWronglyShapedAreCountedAndNamed) {
  const ModelConfig config = tiny_config(Variant::kPi0);
  ShapeSource source(config);
  source.drop("state_proj.bias");
  std::string text = refusal(source, config);
  EXPECT_TRUE(contains(text, "1 missing: state_proj.bias.")) << text;
  EXPECT_TRUE(contains(text, "test source") && contains(text, "pi0 network") && contains(text, "Nothing was loaded"))
      << text;
  EXPECT_FALSE(contains(text, "unexpected") || contains(text, "another shape")) << text;

  source = ShapeSource(config);
  source.set("value_head.weight", {1, 32});
  text = refusal(source, config);
  EXPECT_TRUE(contains(text, "1 unexpected: value_head.weight.")) << text;
  EXPECT_FALSE(contains(text, "missing")) << text;

  source = ShapeSource(config);
  source.set("action_in_proj.weight", {32, 7});
  text = refusal(source, config);
  EXPECT_TRUE(contains(text, "1 of another shape: action_in_proj.weight (expected [32, 32], found [32, 7]).")) << text;

  source.drop("state_proj.bias");
  source.set("value_head.weight", {1, 32});
  text = refusal(source, config);
  EXPECT_TRUE(contains(text, "1 missing") && contains(text, "1 unexpected") && contains(text, "1 of another shape"))
      << text;
}

TEST(LoadWeights, EveryDroppedTensorIsMissed) {
  for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
    const ModelConfig config = tiny_config(variant);
    const std::vector<std::string> names = ShapeSource(config).names();
    for (const std::string& name : names) {
      ShapeSource source(config);
      source.drop(name);
      ASSERT_TRUE(contains(refusal(source, config), "1 missing: " + name + ".")) << name;
    }
  }
}

TEST(LoadWeights, LongListsAreCutAfterFive) {
  const ModelConfig config = tiny_config(Variant::kPi0);
  ShapeSource source(config);
  for (const char* name : {"q1", "q2", "q3", "q4", "q5", "q6", "q7"}) source.set(name, {1});
  const std::string text = refusal(source, config);
  EXPECT_TRUE(contains(text, "7 unexpected: q1, q2, q3, q4, q5, ….")) << text;
}

TEST(LoadWeights, TheOtherVariantDoesNotFit) {
  const std::string text = refusal(ShapeSource(tiny_config(Variant::kPi05)), tiny_config(Variant::kPi0));
  EXPECT_TRUE(contains(text, "missing") && contains(text, "unexpected")) << text;
}

}  // namespace
}  // namespace tendon::test
