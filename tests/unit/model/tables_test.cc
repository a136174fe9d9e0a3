#include "model/weights/tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <cmath>

#include "base/convert.h"
#include "checkpoint/safetensors.h"
#include "model/weights/synth.h"

namespace tendon {
namespace {

class TablesTest : public testing::TestWithParam<Variant> {
 protected:
  TablesTest() : config_(tiny_config(GetParam())), source_(config_, "test"), weights_(load_weights(source_, config_)) {}
  bool pi05() const { return config_.pi05(); }
  HostTables build(const Folds& folds, int64_t steps = 10) const {
    return build_tables(weights_, config_, folds, make_schedule(steps, TimeRule::kLerobot), 20,
                        RopeFrequencies::kExact);
  }

  ModelConfig config_;
  SyntheticSource source_;
  Weights weights_;
};

void expect_table(const std::vector<float>& values, const Shape& shape, const Shape& want) {
  EXPECT_EQ(shape, want);
  EXPECT_EQ(std::ssize(values), want.rank() == 0 ? 0 : want.elements());
}

TEST_P(TablesTest, ShapesWithAllFolds) {
  const HostTables tables = build({});
  expect_table(tables.rope, tables.rope_shape, {20, 16});
  expect_table(tables.time_embedding, tables.time_embedding_shape, {});
  if (pi05()) {
    expect_table(tables.modulation, tables.modulation_shape, {10 * 7, 96});
    expect_table(tables.action_in, tables.action_in_shape, {});
    expect_table(tables.action_in_bias, tables.action_in_bias_shape, {});
  } else {
    expect_table(tables.modulation, tables.modulation_shape, {});
    expect_table(tables.action_in, tables.action_in_shape, {32, 32});
    expect_table(tables.action_in_bias, tables.action_in_bias_shape, {10, 32});
  }
}

TEST_P(TablesTest, ShapesWithoutTimeTables) {
  Folds folds;
  folds.time_tables = false;
  const HostTables tables = build(folds, 7);
  expect_table(tables.time_embedding, tables.time_embedding_shape, {7, 32});
  expect_table(tables.modulation, tables.modulation_shape, {});
  expect_table(tables.action_in, tables.action_in_shape, {});
  expect_table(tables.action_in_bias, tables.action_in_bias_shape, {});
  const std::vector<float> first = time_embedding(1.0F, 32, 4e-3, 4.0);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), tables.time_embedding.begin()));
}

// With 8 action columns the folded and the unfolded table differ in width.
TEST_P(TablesTest, ActionInFoldChangesTheWidth) {
  if (pi05()) return;
  const ModelConfig narrow = tiny_config(Variant::kPi0, 8);
  const SyntheticSource source(narrow, "test");
  const Weights weights = load_weights(source, narrow);
  const Schedule schedule = make_schedule(2, TimeRule::kLerobot);
  Folds folds;
  expect_table(build_tables(weights, narrow, folds, schedule, 4, RopeFrequencies::kExact).action_in,
               build_tables(weights, narrow, folds, schedule, 4, RopeFrequencies::kExact).action_in_shape, {32, 8});
  folds.action_in = false;
  const HostTables unfolded = build_tables(weights, narrow, folds, schedule, 4, RopeFrequencies::kExact);
  expect_table(unfolded.action_in, unfolded.action_in_shape, {32, 32});
  // Unfolded: the left half of the stored matrix.
  const std::vector<float> w1 = widened(weights.time_mlp_in.w);
  for (int64_t o = 0; o < 32; ++o) {
    for (int64_t i = 0; i < 32; ++i) {
      ASSERT_EQ(unfolded.action_in[static_cast<size_t>(o * 32 + i)], w1[static_cast<size_t>(o * 64 + i)]);
    }
  }
}

// The folded π0 table gives what action_in_proj, concatenation and action_time_mlp_in give, in f64.
TEST_P(TablesTest, Pi0FoldEqualsTheChain) {
  if (pi05()) return;
  const HostTables tables = build({}, 4);
  const std::vector<float> x = synthetic_noise(1, 32);
  const std::vector<float> wi = widened(weights_.action_in.w);
  const std::vector<float> bi = widened(weights_.action_in.bias);
  const std::vector<float> w1 = widened(weights_.time_mlp_in.w);
  const std::vector<float> b1 = widened(weights_.time_mlp_in.bias);
  const std::vector<float> times = make_schedule(4, TimeRule::kLerobot).times;
  for (size_t step = 0; step < 4; ++step) {
    const std::vector<float> e = time_embedding(times[step], 32, 4e-3, 4.0);
    std::vector<double> joined(64);
    for (size_t o = 0; o < 32; ++o) {
      joined[o] = bi[o];
      for (size_t i = 0; i < 32; ++i) joined[o] += static_cast<double>(wi[o * 32 + i]) * static_cast<double>(x[i]);
      joined[32 + o] = e[o];
    }
    for (size_t o = 0; o < 32; ++o) {
      double want = b1[o];
      for (size_t i = 0; i < 64; ++i) want += static_cast<double>(w1[o * 64 + i]) * joined[i];
      double got = tables.action_in_bias[step * 32 + o];
      for (size_t i = 0; i < 32; ++i) {
        got += static_cast<double>(tables.action_in[o * 32 + i]) * static_cast<double>(x[i]);
      }
      ASSERT_NEAR(got, want, 2e-6) << "step " << step << ", row " << o;
    }
  }
}

// π0.5: dense · c + bias with the c that LeRobot's code computed.
TEST_P(TablesTest, Pi05ModulationFollowsTheReferenceCondition) {
  if (!pi05()) return;
  const auto fixture = SafetensorsFile::open(TENDON_TEST_DATA "/tiny_pi05/all_cams_n10.safetensors");
  const Tensor condition = fixture.tensor("f32_exact/adarms_cond");  // (steps, 1, W)
  const HostTables tables = build({});
  for (size_t step = 0; step < 10; ++step) {
    const float* c = condition.as<float>() + step * 32;
    for (size_t norm = 0; norm < 7; ++norm) {
      const GemmaLayerWeights& layer = weights_.expert.layers[std::min<size_t>(norm / 2, 2)];
      const NormWeights& source =
          norm == 6 ? weights_.expert.final_norm : (norm % 2 == 0 ? layer.input_norm : layer.post_norm);
      const std::vector<float> w = widened(source.modulation.w);
      const std::vector<float> b = widened(source.modulation.bias);
      for (size_t o = 0; o < 96; ++o) {
        double want = b[o];
        for (size_t i = 0; i < 32; ++i) want += static_cast<double>(w[o * 32 + i]) * static_cast<double>(c[i]);
        ASSERT_NEAR(tables.modulation[(step * 7 + norm) * 96 + o], want, 1e-5)
            << "step " << step << ", norm " << norm << ", row " << o;
      }
    }
  }
}

TEST_P(TablesTest, RoundedFrequenciesReachTheTable) {
  const HostTables rounded =
      build_tables(weights_, config_, {}, make_schedule(1, TimeRule::kLerobot), 20, RopeFrequencies::kBf16);
  EXPECT_EQ(rounded.rope, rope_table(20, 16, 10000.0, RopeFrequencies::kBf16));
  EXPECT_NE(rounded.rope, build({}).rope);
}

INSTANTIATE_TEST_SUITE_P(Both, TablesTest, testing::Values(Variant::kPi0, Variant::kPi05),
                         [](const testing::TestParamInfo<Variant>& test) {
                           return std::string(variant_name(test.param));
                         });

}  // namespace
}  // namespace tendon
