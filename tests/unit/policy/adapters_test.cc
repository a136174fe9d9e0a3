#include "policy/adapters.h"

#include <cmath>
#include <limits>

#include "policy_test.h"

namespace tendon {
namespace {

std::vector<double> linspace(double from, double to, int count) {
  std::vector<double> values;
  for (int i = 0; i < count; ++i) values.push_back(from + (to - from) * i / (count - 1));
  return values;
}

TEST(Adapters, GripperInMatchesOpenpi) {
  EXPECT_NEAR(aloha_gripper_in(0.0), -1.0798655475132917, 1e-14);
  EXPECT_NEAR(aloha_gripper_in(0.25), -0.5130776068814178, 1e-14);
  EXPECT_NEAR(aloha_gripper_in(0.5), -0.1400559217021429, 1e-14);
  EXPECT_NEAR(aloha_gripper_in(0.75), 0.223328, 1e-6);
  EXPECT_NEAR(aloha_gripper_in(1.0), 0.945652797407483, 1e-7);  // asin is steep at 1
  EXPECT_NEAR(aloha_gripper_in(1.1), 0.945653, 1e-6);           // clamped
}

TEST(Adapters, GripperOutMatchesOpenpiAndIsNotClamped) {
  EXPECT_NEAR(aloha_gripper_out(0.0), 0.5533778345878898, 1e-15);
  EXPECT_NEAR(aloha_gripper_out(0.5), 0.790087, 1e-6);
  EXPECT_NEAR(aloha_gripper_out(1.0), 1.0267954362543197, 1e-15);
  EXPECT_GT(aloha_gripper_out(3.0), 1.5);
  for (const double value : {-1.0, 0.0, 0.3, 2.0}) {
    EXPECT_NEAR(aloha_gripper_action_in(aloha_gripper_out(value)), value, 1e-14);
  }
}

TEST(Adapters, AlohaFlipsTheSameJointsInAndOut) {
  const std::vector<double> signs = {1, -1, -1, 1, 1, 1, 0, 1, -1, -1, 1, 1, 1, 0};
  const std::vector<double> ones(kAlohaWidth, 1.0);
  std::vector<double> state = ones;
  std::vector<double> action = ones;
  aloha_state_in(state);
  aloha_action_out(action);
  for (size_t i = 0; i < ones.size(); ++i) {
    if (signs[i] == 0) {
      EXPECT_NEAR(state[i], 0.945653, 1e-6);
      EXPECT_NEAR(action[i], 1.026795, 1e-6);
    } else {
      EXPECT_EQ(state[i], signs[i]);
      EXPECT_EQ(action[i], signs[i]);
    }
  }
  aloha_action_in(action);
  for (const double value : action) EXPECT_NEAR(value, 1.0, 1e-14);
}

// Stats mean .1, std .5; the model says .25 everywhere; two rows, which must be equal.
TEST(Adapters, AlohaEndToEndRow) {
  const Preset& preset = find_preset("pi0_aloha");
  const int width = preset.action_dim;
  const std::vector<double> model_state = robot_state_in(preset, linspace(0.05, 0.7, kAlohaWidth));
  const double scale = 0.5 + 1e-6;
  std::vector<double> normalized_state;
  for (const double value : model_state) normalized_state.push_back((value - 0.1) / scale);
  EXPECT_NEAR(normalized_state[1], (-0.1 - 0.1) / scale, 1e-15);

  const std::vector<double> unnormalized(static_cast<size_t>(width) * 2, 0.25 * scale + 0.1);
  const std::vector<double> reply = robot_actions_out(preset, unnormalized, width, model_state);
  const std::vector<double> row = {.275, -.125, -.075, .425, .475, .525, .659897,
                                   .625, .225,  .275,  .775, .825, .875, .659897};
  ASSERT_EQ(reply.size(), 2 * row.size());
  for (size_t i = 0; i < reply.size(); ++i) EXPECT_NEAR(reply[i], row[i % row.size()], 1e-6) << i;
}

TEST(Adapters, AlohaAdapterOffLeavesValuesAlone) {
  const Preset& preset = find_preset("pi0_aloha_sim");  // absolute actions
  const std::vector<double> state = linspace(-0.5, 0.8, kAlohaWidth);
  const AdapterOptions off{.adapt_to_pi = false};
  EXPECT_EQ(robot_state_in(preset, state, off), state);
  const std::vector<double> actions = linspace(0.0, 1.0, 32);
  EXPECT_EQ(robot_actions_out(preset, actions, 32, state, off),
            std::vector<double>(actions.begin(), actions.begin() + kAlohaWidth));
}

TEST(Adapters, RelativeDimsFollowThePreset) {
  struct Case {
    const char* preset;
    std::vector<int> relative;
    size_t width;
  };
  const std::vector<Case> cases = {
      {"pi0_libero", {0, 1, 2, 3, 4, 5}, 7},
      {"pi05_libero", {}, 7},
      {"pi05_droid", {}, 8},
      {"pi05_full_droid_finetune", {0, 1, 2, 3, 4, 5, 6}, 8},
      {"pi0_ur5", {0, 1, 2, 3, 4, 5}, 7},
  };
  for (const Case& one : cases) {
    const Preset& preset = find_preset(one.preset);
    const std::vector<double> state(static_cast<size_t>(preset.robot->state_width), 10.0);
    std::vector<double> wanted(one.width, 1.0);
    for (const int dim : one.relative) wanted[static_cast<size_t>(dim)] = 11.0;
    const std::vector<double> actions(32, 1.0);
    EXPECT_EQ(robot_actions_out(preset, actions, 32, robot_state_in(preset, state)), wanted) << one.preset;
  }
}

TEST(Adapters, StateIsAddedToEveryRowNotAccumulated) {
  std::vector<double> actions = {0, 1, 2, 3, 4, 5};
  add_state(actions, 2, std::vector<double>{10, 20, 30}, {true, false});
  EXPECT_EQ(actions, (std::vector<double>{10, 1, 12, 3, 14, 5}));
}

TEST(Adapters, SlicesColumns) {
  EXPECT_EQ(slice_columns(std::vector<double>{1, 2, 3, 4, 5, 6}, 3, 2), (std::vector<double>{1, 2, 4, 5}));
}

TEST(Adapters, RefusesBadStates) {
  const Preset& preset = find_preset("pi05_droid");
  expect_bad_input({"pi05_droid", "8 numbers", "14 were given"},
                   [&] { robot_state_in(preset, std::vector<double>(14)); });
  std::vector<double> state(8, 0.0);
  state[3] = std::numeric_limits<double>::quiet_NaN();
  expect_bad_input({"element 3", "nan"}, [&] { robot_state_in(preset, state); });
  state[3] = -std::numeric_limits<double>::infinity();
  expect_bad_input({"element 3", "-inf"}, [&] { robot_state_in(preset, state); });
  state[3] = 1e6;
  EXPECT_EQ(robot_state_in(preset, state)[3], 1e6);
}

}  // namespace
}  // namespace tendon
