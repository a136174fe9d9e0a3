#include "policy/preset/presets.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "base/check.h"

namespace tendon {
namespace {

constexpr auto kRequired = CameraUse::kRequired;
constexpr auto kOptional = CameraUse::kOptional;
constexpr auto kUnused = CameraUse::kUnused;

constexpr Robot kAloha = {"aloha",
                          14,
                          14,
                          {{{"base_0_rgb", "base", "images/cam_high", kRequired},
                            {"left_wrist_0_rgb", "left", "images/cam_left_wrist", kOptional},
                            {"right_wrist_0_rgb", "right", "images/cam_right_wrist", kOptional}}},
                          {"state", ""},
                          "left joints 6 in radians, left gripper, right joints 6 in radians, right gripper",
                          ImageLayout::kChwOnly,
                          true,
                          "images",
                          "cam_low"};

constexpr Robot kDroid = {"droid",
                          8,
                          8,
                          {{{"base_0_rgb", "base", "observation/exterior_image_1_left", kRequired},
                            {"left_wrist_0_rgb", "left", "observation/wrist_image_left", kRequired},
                            {"right_wrist_0_rgb", "right", "", kUnused}}},
                          {"observation/joint_position", "observation/gripper_position"},
                          "joints 7 in radians, gripper"};

constexpr Robot kLibero = {"libero",
                           8,
                           7,
                           {{{"base_0_rgb", "base", "observation/image", kRequired},
                             {"left_wrist_0_rgb", "left", "observation/wrist_image", kRequired},
                             {"right_wrist_0_rgb", "right", "", kUnused}}},
                           {"observation/state", ""},
                           "end effector position 3, axis-angle 3, gripper 2"};

constexpr Robot kUr5 = {"ur5",
                        7,
                        7,
                        {{{"base_0_rgb", "base", "base_rgb", kRequired},
                          {"left_wrist_0_rgb", "left", "wrist_rgb", kRequired},
                          {"right_wrist_0_rgb", "right", "", kUnused}}},
                        {"joints", "gripper"},
                        "joints 6 in radians, gripper"};

constexpr int kTwoArmsDelta[] = {6, -1, 6, -1};
constexpr int kSixJointsDelta[] = {6, -1};
constexpr int kSevenJointsDelta[] = {7, -1};
constexpr std::span<const int> kAbsolute;
constexpr double kAlohaResetPose[] = {0.0, -1.5, 1.5, 0.0, 0.0, 0.0};  // one arm's joints, radians
constexpr std::span<const double> kNoPose;

constexpr auto kPi0 = PromptForm::kPi0;
constexpr auto kPi05 = PromptForm::kPi05;
constexpr int kD = kModelActionDim;
constexpr std::string_view kLiberoAssets = "physical-intelligence/libero";
constexpr std::string_view kTupperware = "open the tupperware and put the food on the plate";

// Source: openpi training/config.py. π0-FAST configurations are another model and are not here.
// clang-format off
constexpr Preset kPresets[] = {
  // name, variant, robot, horizon, max_token_len, action_dim, asset_id, delta_runs, prompt, default_prompt, reset_pose
  {"pi0_aloha", "pi0", &kAloha, 50, 48, kD, "trossen", kTwoArmsDelta, kPi0, "", kAlohaResetPose},
  {"pi05_aloha", "pi05", &kAloha, 50, 200, kD, "trossen", kTwoArmsDelta, kPi05, "", kAlohaResetPose},
  {"pi0_aloha_towel", "pi0", &kAloha, 50, 48, kD, "trossen", kTwoArmsDelta, kPi0, "fold the towel", kAlohaResetPose},
  {"pi0_aloha_tupperware", "pi0", &kAloha, 50, 48, kD, "trossen", kTwoArmsDelta, kPi0, kTupperware, kAlohaResetPose},
  {"pi0_aloha_pen_uncap", "pi0", &kAloha, 50, 48, kD, "trossen", kTwoArmsDelta, kPi0, "uncap the pen", kNoPose},
  {"pi05_aloha_pen_uncap", "pi05", &kAloha, 50, 200, kD, "trossen", kTwoArmsDelta, kPi05, "uncap the pen", kNoPose},
  {"pi0_aloha_sim", "pi0", &kAloha, 50, 48, kD, "lerobot/aloha_sim_transfer_cube_human", kAbsolute, kPi0,
   "Transfer cube", kNoPose},
  {"pi0_droid", "pi0", &kDroid, 10, 48, kD, "droid", kAbsolute, kPi0, "", kNoPose},
  {"pi05_droid", "pi05", &kDroid, 15, 200, kD, "droid", kAbsolute, kPi05, "", kNoPose},
  {"pi05_droid_finetune", "pi05", &kDroid, 16, 200, kD, "droid", kAbsolute, kPi05, "", kNoPose},
  {"pi05_full_droid_finetune", "pi05", &kDroid, 16, 200, kD, "droid", kSevenJointsDelta, kPi05, "", kNoPose},
  // pi05_libero was trained without the state in its prompt; LIBERO actions of the older π0 configurations are deltas
  // already and openpi adds the state nevertheless.
  {"pi05_libero", "pi05", &kLibero, 10, 200, kD, kLiberoAssets, kAbsolute, kPi0, "", kNoPose},
  {"pi0_libero", "pi0", &kLibero, 50, 48, kD, kLiberoAssets, kSixJointsDelta, kPi0, "", kNoPose},
  {"pi0_libero_low_mem_finetune", "pi0", &kLibero, 50, 48, kD, kLiberoAssets, kSixJointsDelta, kPi0, "", kNoPose},
  {"pi05_droid_jointpos_polaris", "pi05", &kDroid, 15, 200, kD, "droid", kSevenJointsDelta, kPi05, "", kNoPose},
  {"pi0_droid_jointpos_polaris", "pi0", &kDroid, 10, 100, kD, "droid", kSevenJointsDelta, kPi0, "", kNoPose},
  {"pi0_droid_jointpos_100k_polaris", "pi0", &kDroid, 10, 100, kD, "droid", kSevenJointsDelta, kPi0, "", kNoPose},
  {"pi0_ur5", "pi0", &kUr5, 50, 48, kD, "ur5e", kSixJointsDelta, kPi0, "", kNoPose},
};
// clang-format on

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// "images/cam_high" -> "cam_high"
std::string_view last_part(std::string_view key) {
  const size_t slash = key.rfind('/');
  return slash == std::string_view::npos ? key : key.substr(slash + 1);
}

std::string describe(const CameraSlot& camera) {
  return fmt::format("{} ({}, {})", camera.short_name, camera.slot, camera.key);
}

}  // namespace

std::span<const Preset> all_presets() { return kPresets; }

const Preset& find_preset(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset;
    names.push_back(preset.name);
  }
  const std::string_view shown = name.substr(0, 64);
  const auto nearest =
      *std::ranges::min_element(names, {}, [&](std::string_view known) { return edit_distance(shown, known); });
  throw_bad_use("unknown preset '{}'. Did you mean '{}'? Presets: {}.", shown, nearest, fmt::join(names, ", "));
}

std::vector<bool> delta_mask(const Preset& preset) {
  std::vector<bool> mask;
  for (const int run : preset.delta_runs) mask.insert(mask.end(), static_cast<size_t>(std::abs(run)), run > 0);
  return mask;
}

int camera_slot(const Preset& preset, std::string_view name) {
  const auto& cameras = preset.robot->cameras;
  std::vector<std::string> accepted;
  for (int i = 0; i < kCameraSlots; ++i) {
    const CameraSlot& camera = cameras[static_cast<size_t>(i)];
    const bool named = name == camera.slot || name == camera.short_name ||
                       (!camera.key.empty() && (name == camera.key || name == last_part(camera.key)));
    if (named && camera.use == kUnused) {
      throw_bad_use("preset {} has no camera '{}': the model is told that this view is absent. Leave it out.",
                    preset.name, name);
    }
    if (named) return i;
    if (camera.use != kUnused) accepted.push_back(describe(camera));
  }
  throw_bad_use("unknown camera '{}' for preset {}. Cameras: {}.", name, preset.name, fmt::join(accepted, ", "));
}

void check_cameras(const Preset& preset, const std::array<bool, kCameraSlots>& given) {
  std::vector<std::string_view> present;
  std::vector<std::string> missing;
  for (size_t i = 0; i < given.size(); ++i) {
    const CameraSlot& camera = preset.robot->cameras[i];
    if (given[i]) present.push_back(camera.short_name);
    if (!given[i] && camera.use == kRequired) missing.push_back(describe(camera));
  }
  if (missing.empty()) return;
  throw_bad_input("preset {} needs the camera {}; given: {}. Add the missing picture.", preset.name,
                  fmt::join(missing, " and "), present.empty() ? "none" : fmt::format("{}", fmt::join(present, ", ")));
}

}  // namespace tendon
