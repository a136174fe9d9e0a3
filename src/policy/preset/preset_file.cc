#include "policy/preset/preset_file.h"

#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <optional>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "policy/adapters.h"
#include "policy/files/file.h"

namespace tendon {

using Json = nlohmann::json;

namespace {

constexpr size_t kMaxPresetBytes = size_t{1} << 20;
constexpr int kMaxWidth = 4096;
constexpr int kMaxRows = 1000;
constexpr int kMaxTokens = 4096;

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 60) + "…" : text;
}

}  // namespace

// One object of the file, with the path that leads to it.
class PresetReader {
 public:
  PresetReader(const Json& object, std::string where, std::string path)
      : object_(object), where_(std::move(where)), path_(std::move(path)) {
    if (!object.is_object()) fail("", object, "an object");
  }

  void only(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        throw_bad_input("preset file '{}' has an unknown field '{}{}'. Known here: {}.", where_, path_,
                        key.substr(0, 64), fmt::join(known, ", "));
      }
    }
  }

  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  const Json& require(const char* key, const char* wanted) const {
    const Json* const value = find(key);
    if (value == nullptr) throw_bad_input("preset file '{}' lacks the field '{}{}' ({}).", where_, path_, key, wanted);
    return *value;
  }
  int integer(const char* key, int low, int high, std::optional<int> otherwise = {}) const {
    const std::string wanted = fmt::format("a whole number from {} to {}", low, high);
    if (otherwise && find(key) == nullptr) return *otherwise;
    const Json& value = require(key, wanted.c_str());
    if (!value.is_number_integer() || value.get<double>() < low || value.get<double>() > high)
      fail(key, value, wanted.c_str());
    return value.get<int>();
  }
  bool boolean(const char* key, bool otherwise) const {
    const Json* const value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) fail(key, *value, "true or false");
    return value->get<bool>();
  }
  std::string text(const char* key, std::optional<std::string> otherwise = {}) const {
    if (otherwise && find(key) == nullptr) return *otherwise;
    const Json& value = require(key, "a text");
    if (!value.is_string()) fail(key, value, "a text");
    return value.get<std::string>();
  }
  // The position of the word that the field holds.
  size_t word(const char* key, std::initializer_list<std::string_view> words,
              std::optional<size_t> otherwise = {}) const {
    if (otherwise && find(key) == nullptr) return *otherwise;
    const std::string wanted = fmt::format("one of {}", fmt::join(words, ", "));
    const Json& value = require(key, wanted.c_str());
    const auto found =
        value.is_string() ? std::find(words.begin(), words.end(), value.get<std::string>()) : words.end();
    if (found == words.end()) fail(key, value, wanted.c_str());
    return static_cast<size_t>(found - words.begin());
  }
  PresetReader object(const char* key, const char* wanted) const {
    return {require(key, wanted), where_, path_ + key + "."};
  }

  [[noreturn]] void fail(std::string_view key, const Json& value, const char* wanted) const {
    std::string name = path_ + std::string(key);
    if (name.ends_with('.')) name.pop_back();
    throw_bad_input("preset file '{}': {} is {}, but it must be {}.", where_,
                    name.empty() ? "its content" : "the field '" + name + "'", shown(value), wanted);
  }

  // --- parts of a preset
  // ----------------------------------------------------------------------------------------------

  static void read(const PresetReader& top, PresetFile::Content& content) {
    top.only({"name", "model", "horizon", "max_token_len", "action_dim", "state", "actions", "cameras", "camera_map",
              "idle_camera", "image_layout", "aloha_units", "prompt_form", "default_prompt", "asset_id", "reset_pose"});
    const auto keep = [&](std::string text) -> std::string_view { return content.texts.emplace_back(std::move(text)); };
    Preset& preset = content.preset;
    Robot& robot = content.robot;
    preset.robot = &robot;
    preset.name = robot.name = keep(top.text("name"));
    const bool pi05 = top.word("model", {"pi0", "pi05"}) == 1;
    preset.variant = pi05 ? "pi05" : "pi0";
    preset.horizon = top.integer("horizon", 1, kMaxRows);
    preset.max_token_len = top.integer("max_token_len", 1, kMaxTokens, pi05 ? 200 : 48);
    preset.action_dim = top.integer("action_dim", 1, kMaxWidth, kModelActionDim);
    preset.prompt_form =
        top.word("prompt_form", {"pi0", "pi05"}, pi05 ? 1 : 0) == 1 ? PromptForm::kPi05 : PromptForm::kPi0;
    preset.default_prompt = keep(top.text("default_prompt", ""));
    preset.asset_id = keep(top.text("asset_id", ""));
    robot.layout =
        top.word("image_layout", {"hwc_or_chw", "chw"}, 0) == 1 ? ImageLayout::kChwOnly : ImageLayout::kHwcOrChw;
    robot.aloha_units = top.boolean("aloha_units", false);
    robot.camera_map = keep(top.text("camera_map", ""));
    robot.idle_camera = keep(top.text("idle_camera", ""));
    read_state(top.object("state", "an object with keys and width"), preset.action_dim, content, keep);
    read_actions(top.object("actions", "an object with the width"), content);
    read_cameras(top.object("cameras", "an object with base, and left_wrist and right_wrist where there are any"),
                 content, keep);
    read_pose(top, content);
    if (robot.aloha_units && (robot.state_width != kAlohaWidth || robot.action_width != kAlohaWidth)) {
      throw_bad_input("preset file '{}': 'aloha_units' is true, but state and actions have {} and {} numbers, not {}.",
                      top.where_, robot.state_width, robot.action_width, kAlohaWidth);
    }
  }

 private:
  template <class Keep>
  static void read_state(const PresetReader& state, int action_dim, PresetFile::Content& content, const Keep& keep) {
    state.only({"keys", "slices", "width", "meaning"});
    Robot& robot = content.robot;
    robot.state_width = state.integer("width", 1, action_dim);
    robot.state_meaning = keep(state.text("meaning", "as the preset file says"));
    const Json& keys = state.require("keys", "a list of one or two observation keys");
    if (!keys.is_array() || keys.empty() || keys.size() > robot.state_keys.size() ||
        !std::all_of(keys.begin(), keys.end(), [](const Json& key) { return key.is_string() && key != ""; }))
      state.fail("keys", keys, "a list of one or two texts");
    for (size_t i = 0; i < keys.size(); ++i) robot.state_keys[i] = keep(keys[i].get<std::string>());
    const Json* const slices = state.find("slices");
    if (slices == nullptr) return;
    const auto is_slice = [](const Json& slice) {
      return slice.is_null() ||
             (slice.is_array() && slice.size() == 2 && slice[0].is_number_integer() && slice[1].is_number_integer() &&
              slice[0] >= 0 && slice[1] > slice[0] && slice[1] <= kMaxWidth);
    };
    if (!slices->is_array() || slices->size() != keys.size() || !std::all_of(slices->begin(), slices->end(), is_slice))
      state.fail("slices", *slices, "a list with [begin, end] or null for each key");
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!(*slices)[i].is_null()) robot.state_slices[i] = {(*slices)[i][0].get<int>(), (*slices)[i][1].get<int>()};
    }
  }

  static void read_actions(const PresetReader& actions, PresetFile::Content& content) {
    actions.only({"width", "delta"});
    Robot& robot = content.robot;
    robot.action_width = actions.integer("width", 1, content.preset.action_dim);
    const Json* const delta = actions.find("delta");
    if (delta == nullptr) return;
    const bool is_list = delta->is_array() && std::all_of(delta->begin(), delta->end(), [](const Json& run) {
                           return run.is_number_integer() && run != 0 && std::abs(run.get<double>()) <= kMaxWidth;
                         });
    if (!is_list)
      actions.fail("delta", *delta, "a list of run lengths, such as [6, -1]: 6 relative numbers, 1 absolute");
    int covered = 0;
    for (const Json& run : *delta) {
      content.delta_runs.push_back(run.get<int>());
      covered += std::abs(run.get<int>());
    }
    if (covered > std::min(robot.action_width, robot.state_width)) {
      throw_bad_input(
          "preset file '{}': the field 'actions.delta' covers {} numbers, but state and actions have {} and {}.",
          actions.where_, covered, robot.state_width, robot.action_width);
    }
    content.preset.delta_runs = content.delta_runs;
  }

  template <class Keep>
  static void read_cameras(const PresetReader& cameras, PresetFile::Content& content, const Keep& keep) {
    constexpr const char* kNames[] = {"base", "left_wrist", "right_wrist"};
    constexpr std::string_view kShortNames[] = {"base", "left", "right"};
    constexpr std::string_view kSlots[] = {"base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"};
    cameras.only({kNames[0], kNames[1], kNames[2]});
    Robot& robot = content.robot;
    int used = 0;
    for (size_t i = 0; i < kCameraSlots; ++i) {
      robot.cameras[i] = {kSlots[i], kShortNames[i], {}, CameraUse::kUnused};
      const Json* const given = cameras.find(kNames[i]);
      if (given == nullptr || given->is_null()) continue;
      const PresetReader camera(*given, cameras.where_, cameras.path_ + kNames[i] + ".");
      camera.only({"key", "optional"});
      std::string key = camera.text("key");
      if (key.empty()) camera.fail("key", key, "the key of the picture");
      if (!robot.camera_map.empty()) key = std::string(robot.camera_map) + "/" + key;
      robot.cameras[i].key = keep(std::move(key));
      robot.cameras[i].use = camera.boolean("optional", false) ? CameraUse::kOptional : CameraUse::kRequired;
      ++used;
    }
    if (used == 0)
      throw_bad_input("preset file '{}': the field 'cameras' names no camera; the model needs one.", cameras.where_);
  }

  static void read_pose(const PresetReader& top, PresetFile::Content& content) {
    const Json* const pose = top.find("reset_pose");
    if (pose == nullptr) return;
    const bool is_list = pose->is_array() && pose->size() <= kMaxWidth &&
                         std::all_of(pose->begin(), pose->end(), [](const Json& x) { return x.is_number(); });
    if (!is_list) top.fail("reset_pose", *pose, "a list of numbers");
    content.reset_pose = pose->get<std::vector<double>>();
    content.preset.reset_pose = content.reset_pose;
  }

  const Json& object_;
  std::string where_, path_;
};

PresetFile PresetFile::parse(std::string_view text, const std::string& where) {
  PresetFile file;
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    throw_bad_input("preset file '{}' is not JSON: {}.", where, error.what());
  }
  PresetReader::read(PresetReader(json, where, ""), *file.content_);
  return file;
}

PresetChoice::PresetChoice(const std::string& name) {
  if (name.ends_with(".json")) {
    file_ =
        std::make_unique<PresetFile>(PresetFile::parse(read_small_file(name, kMaxPresetBytes, "preset file"), name));
    preset_ = &file_->preset();
  } else {
    preset_ = &find_preset(name);
  }
}

}  // namespace tendon
