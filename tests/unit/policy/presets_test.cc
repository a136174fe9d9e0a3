#include "policy/preset/presets.h"

#include <set>

#include "policy_test.h"

namespace tendon {
namespace {

TEST(Presets, AreConsistent) {
  std::set<std::string_view> names;
  for (const Preset& preset : all_presets()) {
    SCOPED_TRACE(preset.name);
    EXPECT_TRUE(names.insert(preset.name).second);
    EXPECT_EQ(&find_preset(preset.name), &preset);
    EXPECT_TRUE(preset.name.starts_with(std::string(preset.variant) + "_"));
    ASSERT_NE(preset.robot, nullptr);
    EXPECT_EQ(preset.action_dim, 32);
    EXPECT_FALSE(preset.asset_id.empty());
    EXPECT_LE(preset.robot->state_width, preset.action_dim);
    const std::vector<bool> mask = delta_mask(preset);
    EXPECT_LE(mask.size(), static_cast<size_t>(preset.robot->action_width));
    EXPECT_TRUE(preset.variant == "pi05" || preset.prompt_form == PromptForm::kPi0);
    const auto& cameras = preset.robot->cameras;
    EXPECT_EQ(cameras[0].slot, "base_0_rgb");
    EXPECT_EQ(cameras[1].slot, "left_wrist_0_rgb");
    EXPECT_EQ(cameras[2].slot, "right_wrist_0_rgb");
    EXPECT_EQ(cameras[0].use, CameraUse::kRequired);
    for (const CameraSlot& camera : cameras) EXPECT_EQ(camera.key.empty(), camera.use == CameraUse::kUnused);
  }
  EXPECT_EQ(names.size(), 18U);
}

TEST(Presets, HoldOpenpiValues) {
  struct Row {
    const char* name;
    int horizon;
    int max_token_len;
    int state_width;
    int action_width;
    size_t mask;
    const char* asset_id;
  };
  const std::vector<Row> rows = {
      {"pi0_aloha", 50, 48, 14, 14, 14, "trossen"},
      {"pi05_aloha", 50, 200, 14, 14, 14, "trossen"},
      {"pi0_aloha_sim", 50, 48, 14, 14, 0, "lerobot/aloha_sim_transfer_cube_human"},
      {"pi0_droid", 10, 48, 8, 8, 0, "droid"},
      {"pi05_droid", 15, 200, 8, 8, 0, "droid"},
      {"pi05_droid_finetune", 16, 200, 8, 8, 0, "droid"},
      {"pi05_full_droid_finetune", 16, 200, 8, 8, 8, "droid"},
      {"pi05_libero", 10, 200, 8, 7, 0, "physical-intelligence/libero"},
      {"pi0_libero", 50, 48, 8, 7, 7, "physical-intelligence/libero"},
      {"pi0_droid_jointpos_polaris", 10, 100, 8, 8, 8, "droid"},
      {"pi05_droid_jointpos_polaris", 15, 200, 8, 8, 8, "droid"},
      {"pi0_ur5", 50, 48, 7, 7, 7, "ur5e"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const Preset& preset = find_preset(row.name);
    EXPECT_EQ(preset.horizon, row.horizon);
    EXPECT_EQ(preset.max_token_len, row.max_token_len);
    EXPECT_EQ(preset.robot->state_width, row.state_width);
    EXPECT_EQ(preset.robot->action_width, row.action_width);
    EXPECT_EQ(delta_mask(preset).size(), row.mask);
    EXPECT_EQ(preset.asset_id, row.asset_id);
  }
  EXPECT_EQ(find_preset("pi0_aloha_towel").default_prompt, "fold the towel");
  EXPECT_EQ(find_preset("pi0_aloha_sim").default_prompt, "Transfer cube");
  const auto pose = find_preset("pi05_aloha").reset_pose;
  EXPECT_EQ(std::vector<double>(pose.begin(), pose.end()), (std::vector<double>{0, -1.5, 1.5, 0, 0, 0}));
  EXPECT_TRUE(find_preset("pi0_aloha_sim").reset_pose.empty());
  EXPECT_TRUE(find_preset("pi05_aloha_pen_uncap").reset_pose.empty());
}

TEST(Presets, LiberoOnPi05UsesThePi0Prompt) {
  EXPECT_EQ(find_preset("pi05_libero").prompt_form, PromptForm::kPi0);
  EXPECT_EQ(find_preset("pi05_droid").prompt_form, PromptForm::kPi05);
}

TEST(Presets, DeltaMaskLeavesGrippersAbsolute) {
  const std::vector<bool> mask = delta_mask(find_preset("pi0_aloha"));
  for (size_t i = 0; i < mask.size(); ++i) EXPECT_EQ(mask[i], i != 6 && i != 13) << i;
}

TEST(Presets, UnknownNameSuggestsTheNearest) {
  expect_bad_use({"unknown preset 'pi05_driod'", "Did you mean 'pi05_droid'?", "pi0_aloha", "pi0_ur5"},
                 [] { find_preset("pi05_driod"); });
  expect_bad_use({"unknown preset ''"}, [] { find_preset(""); });
}

TEST(Presets, CamerasGoByAnyOfTheirNames) {
  const Preset& aloha = find_preset("pi0_aloha");
  for (const char* name : {"base", "base_0_rgb", "images/cam_high", "cam_high"}) EXPECT_EQ(camera_slot(aloha, name), 0);
  for (const char* name : {"left", "left_wrist_0_rgb", "cam_left_wrist"}) EXPECT_EQ(camera_slot(aloha, name), 1);
  for (const char* name : {"right", "right_wrist_0_rgb", "cam_right_wrist"}) EXPECT_EQ(camera_slot(aloha, name), 2);
  EXPECT_EQ(camera_slot(find_preset("pi05_droid"), "observation/wrist_image_left"), 1);
  EXPECT_EQ(camera_slot(find_preset("pi05_libero"), "observation/image"), 0);
  expect_bad_use({"unknown camera 'cam_low'", "pi0_aloha", "base (base_0_rgb, images/cam_high)", "right ("},
                 [&] { camera_slot(aloha, "cam_low"); });
  expect_bad_use({"unknown camera ''"}, [&] { camera_slot(find_preset("pi0_droid"), ""); });
  expect_bad_use({"pi0_droid has no camera 'right'", "Leave it out"},
                 [] { camera_slot(find_preset("pi0_droid"), "right"); });
}

TEST(Presets, RequiredCamerasAreDemanded) {
  const Preset& aloha = find_preset("pi0_aloha");
  check_cameras(aloha, {true, false, false});
  check_cameras(find_preset("pi05_droid"), {true, true, false});
  expect_bad_input({"pi0_aloha", "base (base_0_rgb, images/cam_high)", "given: left"}, [&] {
    check_cameras(aloha, {false, true, false});
  });
  expect_bad_input({"base (", " and left (", "given: none"}, [] {
    check_cameras(find_preset("pi05_libero"), {false, false, false});
  });
}

}  // namespace
}  // namespace tendon
