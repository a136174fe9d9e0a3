#include "model/weights/static_scales.h"

#include <unistd.h>

#include <cmath>
#include <limits>

#include <gmock/gmock.h>

#include "base/check.h"
#include "checkpoint/safetensors.h"
#include "model/weights/synth.h"

namespace tendon::test {
namespace {

using testing::HasSubstr;

class StaticScales : public testing::Test {
 protected:
  StaticScales() {
    std::string name = (std::filesystem::temp_directory_path() / "tendon_scales_XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    maxima_.observations = 12;
    maxima_.weights = "0123456789abcdef";
    float next = 0;
    visit_maxima(maxima_, [&](const std::string&, std::vector<float>& values) {
      for (float& value : values) value = 0.25F * next++;
    });
  }
  ~StaticScales() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path file() const { return directory_ / "scales.safetensors"; }
  std::string error_of(const OperandMaxima& written, const ModelConfig& config) const {
    write_maxima(written, file());
    try {
      read_maxima(file(), config);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
      return error.what();
    }
    return "nothing was thrown";
  }

  std::filesystem::path directory_;
  ModelConfig config_ = tiny_config(Variant::kPi0);
  OperandMaxima maxima_ = no_maxima(config_);
};

TEST_F(StaticScales, ComeBackFromTheirFile) {
  write_maxima(maxima_, file());
  OperandMaxima read = read_maxima(file(), config_);
  EXPECT_EQ(read.observations, 12);
  EXPECT_EQ(read.weights, "0123456789abcdef");
  ASSERT_EQ(read.vision.size(), static_cast<size_t>(config_.vision.depth));
  ASSERT_EQ(read.prefix.size(), static_cast<size_t>(config_.depth - 1));
  for (size_t i = 0; i < read.vision.size(); ++i) {
    EXPECT_EQ(read.vision[i].attended, maxima_.vision[i].attended);
    EXPECT_EQ(read.vision[i].hidden, maxima_.vision[i].hidden);
  }
  for (size_t i = 0; i < read.prefix.size(); ++i) {
    EXPECT_EQ(read.prefix[i].attended, maxima_.prefix[i].attended);
    EXPECT_EQ(read.prefix[i].hidden, maxima_.prefix[i].hidden);
  }
}

TEST_F(StaticScales, FilesOfOtherModelsOrWithImpossibleNumbersAreRefused) {
  ModelConfig larger = config_;
  larger.prefix.mlp += 8;
  const std::string size = std::to_string(config_.prefix.mlp);
  EXPECT_THAT(error_of(maxima_, larger),
              testing::AllOf(HasSubstr("scales.safetensors"), HasSubstr("'prefix.hidden.0' is [" + size + "] f32"),
                             HasSubstr("[" + std::to_string(larger.prefix.mlp) + "]"), HasSubstr("--calibrate")));
  larger = config_;
  ++larger.depth;
  EXPECT_THAT(error_of(maxima_, larger),
              HasSubstr("'prefix.attended." + std::to_string(config_.depth - 1) + "' is missing"));
  for (const float bad : {-1.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    OperandMaxima wrong = maxima_;
    wrong.vision[1].hidden[2] = bad;
    EXPECT_THAT(error_of(wrong, config_), HasSubstr("'vision.hidden.1' holds"));
  }
  EXPECT_THROW(read_maxima(directory_ / "none.safetensors", config_), Error);
}

TEST_F(StaticScales, LieBesideTheCheckpoint) {
  EXPECT_EQ(static_scales_file(directory_), directory_ / "tendon_scales.safetensors");
  EXPECT_EQ(static_scales_file(directory_ / "model.safetensors"), directory_ / "tendon_scales.safetensors");
}

TEST(ColumnScales, ShareTheDifferencesOfColumnsWithTheWeights) {
  const std::vector<float> maxima = {8, 2, 0.5F, 0, 32};
  for (const DType codes : {DType::kI8, DType::kE4m3}) {
    const ColumnScales columns = column_scales(maxima, codes);
    for (size_t k = 0; k < maxima.size(); ++k) {
      EXPECT_NEAR(columns.scales[k] * columns.factors[k], 1, 1e-6);
      // Nothing that was seen is cut off, nor what is 1.4 times as large.
      EXPECT_LE(1.4F * maxima[k] * columns.factors[k], scaled_max(codes)) << k;
    }
    EXPECT_NEAR(32 * columns.factors[4], scaled_max(codes) / 1.5F, 1e-3);
    EXPECT_NEAR(columns.scales[4] / columns.scales[1], 4, 1e-5);  // 16 times the size
    EXPECT_NEAR(columns.scales[1] / columns.scales[2], 2, 1e-5);
    EXPECT_GT(columns.scales[3], 0);  // nothing was seen: as if little had been
    EXPECT_LT(columns.scales[3], columns.scales[2]);
  }
  const ColumnScales nothing = column_scales(std::vector<float>(3), DType::kI8);
  for (size_t k = 0; k < 3; ++k) EXPECT_TRUE(std::isfinite(nothing.factors[k]) && nothing.factors[k] > 0);
}

TEST(WeightsMark, ChangesWithTheLastProjection) {
  std::vector<float> values = {1, 2, 3, 4, 5, 6};
  Weights weights;
  weights.action_out.w = Tensor(DType::kF32, {2, 3}, values.data());
  const std::string before = weights_mark(weights);
  EXPECT_EQ(before.size(), 16U);
  EXPECT_EQ(weights_mark(weights), before);
  values[5] = 6.5F;
  EXPECT_NE(weights_mark(weights), before);
}

}  // namespace
}  // namespace tendon::test
