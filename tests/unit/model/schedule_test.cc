#include "model/schedule.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "checkpoint/safetensors.h"
#include "model/weights/folds.h"

namespace tendon {
namespace {

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

TEST(Schedule, TenStepsOfOpenpi) {
  const Schedule schedule = make_schedule(10, TimeRule::kOpenpi);
  EXPECT_EQ(std::bit_cast<uint32_t>(schedule.dt), 0xbdcccccdU);
  EXPECT_EQ(bits_of(schedule.times),
            (std::vector<uint32_t>{0x3f800000, 0x3f666666, 0x3f4ccccc, 0x3f333332, 0x3f199998, 0x3efffffd, 0x3eccccca,
                                   0x3e999997, 0x3e4cccc8, 0x3dccccc3}));
}

TEST(Schedule, TenStepsOfLerobot) {
  const Schedule schedule = make_schedule(10, TimeRule::kLerobot);
  EXPECT_EQ(std::bit_cast<uint32_t>(schedule.dt), 0xbdcccccdU);
  EXPECT_EQ(bits_of(schedule.times),
            (std::vector<uint32_t>{0x3f800000, 0x3f666666, 0x3f4ccccd, 0x3f333333, 0x3f19999a, 0x3f000000, 0x3ecccccd,
                                   0x3e99999a, 0x3e4ccccd, 0x3dcccccd}));
}

// The times that LeRobot's own code visited.
TEST(Schedule, EqualsTheTimesOfTheFixtures) {
  for (const char* file : {"all_cams_n1", "all_cams_n5", "all_cams_n10"}) {
    const auto fixture = SafetensorsFile::open(std::string(TENDON_TEST_DATA) + "/tiny_pi0/" + file + ".safetensors");
    const Tensor times = fixture.tensor("ref/time");
    const Schedule schedule = make_schedule(times.elements(), TimeRule::kLerobot);
    EXPECT_EQ(bits_of(schedule.times),
              bits_of(std::vector<float>(times.as<float>(), times.as<float>() + times.elements())))
        << file;
  }
}

// openpi's loop runs while t ≥ -dt/2.
TEST(Schedule, OpenpiLoopTakesAsManySteps) {
  for (int64_t steps = 1; steps <= 100; ++steps) {
    const Schedule schedule = make_schedule(steps, TimeRule::kOpenpi);
    std::vector<float> visited;
    const auto dt = static_cast<float>(-1.0 / static_cast<double>(steps));
    for (float t = 1.0F; t >= -dt / 2.0F; t = t + dt) visited.push_back(t);
    ASSERT_EQ(std::ssize(visited), steps);
    ASSERT_EQ(bits_of(schedule.times), bits_of(visited)) << steps;
    ASSERT_EQ(schedule.dt, dt);

    const Schedule exact = make_schedule(steps, TimeRule::kLerobot);
    ASSERT_EQ(std::ssize(exact.times), steps);
    for (int64_t k = 0; k < steps; ++k) {
      ASSERT_NEAR(exact.times[static_cast<size_t>(k)], 1.0 - static_cast<double>(k) / static_cast<double>(steps), 6e-8);
      ASSERT_NEAR(schedule.times[static_cast<size_t>(k)], exact.times[static_cast<size_t>(k)], 3e-6);
    }
  }
}

TEST(Schedule, RefusesOtherStepCounts) {
  for (const int64_t steps : {int64_t{0}, int64_t{-1}, int64_t{1001}}) {
    try {
      make_schedule(steps, TimeRule::kOpenpi);
      ADD_FAILURE() << steps;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadUse);
      EXPECT_NE(std::string(error.what()).find(std::to_string(steps)), std::string::npos) << error.what();
    }
  }
  EXPECT_EQ(make_schedule(1000, TimeRule::kLerobot).times.size(), 1000U);
}

TEST(TimeEmbedding, GoldenNumbers) {
  constexpr int64_t kWidth = 1024;
  constexpr int64_t kHalf = kWidth / 2;
  const struct {
    float time;
    int64_t j;
    double sin, cos;
  } rows[] = {
      {1.0F, 0, 0, 1},
      {1.0F, 1, -0.783219, -0.621746},
      {1.0F, 255, -0.252886, 0.967496},
      {1.0F, 511, 1, 0},  // a quarter turn
      {std::bit_cast<float>(0x3f666666U), 0, -3.745e-5, 1},
      {std::bit_cast<float>(0x3f666666U), 1, -0.132282, 0.991212},
      {std::bit_cast<float>(0x3f666666U), 2, -0.010428, 0.999946},
      {std::bit_cast<float>(0x3f666666U), 255, 0.855513, 0.517782},
      {std::bit_cast<float>(0x3f666666U), 510, 0.990515, 0.137403},
      {std::bit_cast<float>(0x3f666666U), 511, 0.987688, 0.156435},
  };
  for (const auto& row : rows) {
    const std::vector<float> e = time_embedding(row.time, kWidth, 4e-3, 4.0);
    ASSERT_EQ(std::ssize(e), kWidth);
    EXPECT_NEAR(e[static_cast<size_t>(row.j)], row.sin, 1e-6) << "sin " << row.j << " at " << row.time;
    EXPECT_NEAR(e[static_cast<size_t>(kHalf + row.j)], row.cos, 1e-6) << "cos " << row.j << " at " << row.time;
  }
}

TEST(TimeEmbedding, PeriodsAreParameters) {
  const std::vector<float> e = time_embedding(0.25F, 4, 0.5, 8.0);
  EXPECT_NEAR(e[0], std::sin(3.14159265358979), 1e-6);
  EXPECT_NEAR(e[1], std::sin(3.14159265358979 / 16.0), 1e-6);
  EXPECT_NEAR(e[2], -1.0, 1e-6);
  EXPECT_NEAR(e[3], std::cos(3.14159265358979 / 16.0), 1e-6);
  EXPECT_THROW(time_embedding(0.5F, 7, 4e-3, 4.0), Error);
  EXPECT_THROW(time_embedding(0.5F, 2, 4e-3, 4.0), Error);
}

TEST(RopeTable, GoldenNumbers) {
  constexpr int64_t kHead = 256;
  const std::vector<float> exact = rope_table(788, kHead, 10000.0, RopeFrequencies::kExact);
  const std::vector<float> rounded = rope_table(788, kHead, 10000.0, RopeFrequencies::kBf16);
  ASSERT_EQ(exact.size(), 788U * 256U);
  const auto at = [](const std::vector<float>& table, int64_t position, int64_t i) {
    return table[static_cast<size_t>(position * kHead + i)];
  };
  EXPECT_NEAR(at(exact, 3, 1), -0.939415, 1e-6);
  EXPECT_NEAR(at(exact, 3, 128 + 1), 0.342782, 1e-6);
  EXPECT_NEAR(at(rounded, 3, 1), -0.938502, 1e-6);
  EXPECT_NEAR(at(rounded, 3, 128 + 1), 0.345273, 1e-6);
  EXPECT_NEAR(at(exact, 787, 5), -0.833135, 1e-6);
  EXPECT_NEAR(at(exact, 787, 128 + 5), 0.553070, 1e-6);
  EXPECT_NEAR(at(rounded, 787, 5), -0.874476, 1e-6);
  EXPECT_NEAR(at(rounded, 787, 128 + 5), -0.485069, 1e-6);
  // Position 1 shows the frequencies themselves.
  const struct {
    int64_t i;
    double exact, rounded;
  } thetas[] = {{1, 0.93057203, 0.9296875},
                {5, 0.69783056, 0.69921875},
                {64, 0.01, 0.010009766},
                {127, 1.0746078e-4, 1.0728836e-4}};
  for (const auto& theta : thetas) {
    EXPECT_NEAR(std::asin(static_cast<double>(at(exact, 1, 128 + theta.i))), theta.exact, 2e-7) << theta.i;
    EXPECT_NEAR(std::asin(static_cast<double>(at(rounded, 1, 128 + theta.i))), theta.rounded, 2e-7) << theta.i;
  }
  for (int64_t i = 0; i < 128; ++i) {
    ASSERT_EQ(at(exact, 0, i), 1.0F);
    ASSERT_EQ(at(exact, 0, 128 + i), 0.0F);
  }
}

TEST(Folds, SwitchOffByNameAndRefuseOthers) {
  for (const FoldInfo& fold : kFolds) {
    Folds folds;
    switch_off(folds, fold.name);
    for (const FoldInfo& other : kFolds) EXPECT_EQ(folds.*other.field, other.name != fold.name) << other.name;
    EXPECT_FALSE(fold.meaning.empty());
  }
  Folds folds;
  try {
    switch_off(folds, "state_token_twice");
    ADD_FAILURE() << "an unknown fold was accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::kBadUse);
    EXPECT_NE(text.find("state_token_twice"), std::string::npos);
    for (const FoldInfo& fold : kFolds) EXPECT_NE(text.find(fold.name), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tendon
