#include "policy/preset/preset_file.h"

#include "policy_test.h"

namespace tendon {
namespace {

const std::string kExample = std::string(TENDON_SOURCE_DIR) + "/examples/preset/my_arm.json";

nlohmann::json example() { return nlohmann::json::parse(read_text(kExample)); }

void refused(const std::vector<std::string>& parts, const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json json = example();
  change(json);
  std::vector<std::string> all = parts;
  all.emplace_back("'arm.json'");
  expect_bad_input(all, [&] { PresetFile::parse(json.dump(), "arm.json"); });
}

TEST(PresetFile, TheExample) {
  const PresetChoice choice(kExample);
  const Preset& preset = choice.preset();
  const Robot& robot = *preset.robot;
  EXPECT_EQ(preset.name, "my_arm");
  EXPECT_EQ(preset.variant, "pi05");
  EXPECT_EQ(preset.horizon, 16);
  EXPECT_EQ(preset.max_token_len, 200);
  EXPECT_EQ(preset.action_dim, 32);
  EXPECT_EQ(preset.prompt_form, PromptForm::kPi05);
  EXPECT_EQ(preset.default_prompt, "pick up the cup");
  EXPECT_EQ(preset.asset_id, "my_arm");
  EXPECT_EQ(delta_mask(preset), (std::vector<bool>{1, 1, 1, 1, 1, 1, 0}));
  EXPECT_TRUE(preset.reset_pose.empty());
  EXPECT_EQ(robot.state_width, 7);
  EXPECT_EQ(robot.action_width, 7);
  EXPECT_EQ(robot.state_keys[1], "observation/gripper");
  EXPECT_EQ(robot.state_slices[0], (std::array<int, 2>{0, 6}));
  EXPECT_EQ(robot.state_slices[1], (std::array<int, 2>{0, 0}));
  EXPECT_EQ(robot.cameras[0].key, "observation/front");
  EXPECT_EQ(robot.cameras[0].use, CameraUse::kRequired);
  EXPECT_EQ(robot.cameras[1].use, CameraUse::kOptional);
  EXPECT_EQ(robot.cameras[2].use, CameraUse::kUnused);
  EXPECT_EQ(camera_slot(preset, "wrist"), 1);
  EXPECT_EQ(robot.layout, ImageLayout::kHwcOrChw);
  EXPECT_FALSE(robot.aloha_units);
}

// A published configuration written down as a file is that configuration.
TEST(PresetFile, AlohaAsAFile) {
  const PresetFile file = PresetFile::parse(R"({"name": "mine", "model": "pi0", "horizon": 50,
    "state": {"keys": ["state"], "width": 14}, "actions": {"width": 14, "delta": [6, -1, 6, -1]},
    "cameras": {"base": {"key": "cam_high"}, "left_wrist": {"key": "cam_left_wrist", "optional": true},
                "right_wrist": {"key": "cam_right_wrist", "optional": true}},
    "camera_map": "images", "idle_camera": "cam_low", "image_layout": "chw", "aloha_units": true, "asset_id": "trossen",
    "reset_pose": [0, -1.5, 1.5, 0, 0, 0]})",
                                            "mine");
  const Preset& mine = file.preset();
  const Preset& published = find_preset("pi0_aloha");
  EXPECT_EQ(mine.variant, published.variant);
  EXPECT_EQ(mine.horizon, published.horizon);
  EXPECT_EQ(mine.max_token_len, published.max_token_len);
  EXPECT_EQ(mine.prompt_form, published.prompt_form);
  EXPECT_EQ(mine.asset_id, published.asset_id);
  EXPECT_EQ(delta_mask(mine), delta_mask(published));
  EXPECT_TRUE(std::ranges::equal(mine.reset_pose, published.reset_pose));
  EXPECT_EQ(mine.robot->layout, published.robot->layout);
  EXPECT_EQ(mine.robot->aloha_units, published.robot->aloha_units);
  EXPECT_EQ(mine.robot->camera_map, published.robot->camera_map);
  EXPECT_EQ(mine.robot->idle_camera, published.robot->idle_camera);
  for (size_t i = 0; i < kCameraSlots; ++i) {
    EXPECT_EQ(mine.robot->cameras[i].slot, published.robot->cameras[i].slot);
    EXPECT_EQ(mine.robot->cameras[i].short_name, published.robot->cameras[i].short_name);
    EXPECT_EQ(mine.robot->cameras[i].key, published.robot->cameras[i].key);
    EXPECT_EQ(mine.robot->cameras[i].use, published.robot->cameras[i].use);
  }
}

TEST(PresetFile, ErrorsNameTheField) {
  refused({"unknown field 'horizont'", "horizon"}, [](auto& j) { j["horizont"] = 3; });
  refused({"unknown field 'cameras.top'", "right_wrist"}, [](auto& j) { j["cameras"]["top"] = nullptr; });
  refused({"unknown field 'cameras.base.name'"}, [](auto& j) { j["cameras"]["base"]["name"] = "x"; });
  refused({"lacks the field 'name'"}, [](auto& j) { j.erase("name"); });
  refused({"lacks the field 'state.width'", "from 1 to 32"}, [](auto& j) { j["state"].erase("width"); });
  refused({"lacks the field 'actions'"}, [](auto& j) { j.erase("actions"); });
  refused({"'model' is \"pi1\"", "one of pi0, pi05"}, [](auto& j) { j["model"] = "pi1"; });
  refused({"'horizon' is 0", "from 1 to 1000"}, [](auto& j) { j["horizon"] = 0; });
  refused({"'horizon' is 2.5"}, [](auto& j) { j["horizon"] = 2.5; });
  refused({"'horizon' is \"16\""}, [](auto& j) { j["horizon"] = "16"; });
  refused({"'horizon' is 1000000000000"}, [](auto& j) { j["horizon"] = 1000000000000; });
  refused({"'max_token_len' is -1"}, [](auto& j) { j["max_token_len"] = -1; });
  refused({"'actions.width' is 33", "from 1 to 32"}, [](auto& j) { j["actions"]["width"] = 33; });
  refused({"'actions.delta' is [6,0]"}, [](auto& j) { j["actions"]["delta"] = {6, 0}; });
  refused({"'actions.delta' covers 9 numbers", "7 and 7"}, [](auto& j) { j["actions"]["delta"] = {6, -3}; });
  refused({"'state.keys' is []"}, [](auto& j) { j["state"]["keys"] = nlohmann::json::array(); });
  refused({"'state.keys'", "one or two"}, [](auto& j) { j["state"]["keys"] = {"a", "b", "c"}; });
  refused({"'state.slices' is [[0,6]]"}, [](auto& j) { j["state"]["slices"] = {{0, 6}}; });
  refused({"'state.slices'"}, [](auto& j) { j["state"]["slices"] = {{6, 6}, nullptr}; });
  refused({"'cameras.base.key' is 4", "a text"}, [](auto& j) { j["cameras"]["base"]["key"] = 4; });
  refused({"'cameras.base' is true", "an object"}, [](auto& j) { j["cameras"]["base"] = true; });
  refused({"'cameras.left_wrist.optional' is 1"}, [](auto& j) { j["cameras"]["left_wrist"]["optional"] = 1; });
  refused({"'cameras' names no camera"}, [](auto& j) { j["cameras"] = nlohmann::json::object(); });
  refused({"'aloha_units' is true", "7 and 7 numbers, not 14"}, [](auto& j) { j["aloha_units"] = true; });
  refused({"'reset_pose' is [\"up\"]"}, [](auto& j) { j["reset_pose"] = {"up"}; });
  refused({"'image_layout' is \"nchw\"", "hwc_or_chw, chw"}, [](auto& j) { j["image_layout"] = "nchw"; });
  refused({"its content is [1]", "an object"}, [](auto& j) { j = {1}; });
  expect_bad_input({"'arm.json' is not JSON"}, [] { PresetFile::parse("{", "arm.json"); });
  expect_bad_input({"/nowhere/arm.json"}, [] { PresetChoice("/nowhere/arm.json"); });
  expect_refused(ErrorKind::kBadUse, {"unknown preset 'pi0_drod'", "pi0_droid"}, [] { PresetChoice("pi0_drod"); });
}

}  // namespace
}  // namespace tendon
