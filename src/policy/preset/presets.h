// openpi's published π0 and π0.5 configurations, as data.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

namespace tendon {

inline constexpr int kCameraSlots = 3;  // model order: base, left wrist, right wrist
inline constexpr int kModelActionDim = 32;

// How pictures that clients send lie in memory.
enum class ImageLayout {
  kChwOnly,  // (3, height, width)
  kHwcOrChw  // (height, width, 3); (3, height, width) if the first dimension is 3
};

enum class PromptForm {
  kPi0,   // BOS, prompt, newline
  kPi05,  // BOS, "Task: ..., State: ...;\nAction: "
};

enum class CameraUse {
  kRequired,
  kOptional,  // masked when the observation lacks it
  kUnused,    // this robot has no such camera: always masked
};

struct CameraSlot {
  std::string_view slot;        // "base_0_rgb"
  std::string_view short_name;  // "base"
  std::string_view key;         // openpi's observation key, "images/cam_high"; empty when unused
  CameraUse use = CameraUse::kRequired;
};

// What openpi's environment transforms fix for one kind of robot.
struct Robot {
  std::string_view name;                         // "aloha"
  int state_width = 0;                           // numbers in an observation's state
  int action_width = 0;                          // numbers in a row of the reply
  std::array<CameraSlot, kCameraSlots> cameras;  // model order
  std::array<std::string_view, 2> state_keys;    // observation keys that make up the state, in order; "" if one
  std::string_view state_meaning;                // for messages and help
  ImageLayout layout = ImageLayout::kHwcOrChw;
  bool aloha_units = false;           // signs and grippers of adapters.h between the robot and the model
  std::string_view camera_map = {};   // cameras are entries of this map of the observation, "images"; empty: of the top
  std::string_view idle_camera = {};  // an entry of that map that is allowed and not read
  std::array<std::array<int, 2>, 2> state_slices = {};  // of each state key, [begin, end); 0, 0: all of it
};

struct Preset {
  std::string_view name;
  std::string_view variant;  // "pi0" or "pi05"
  const Robot* robot = nullptr;
  int horizon = 0;        // rows of the action chunk
  int max_token_len = 0;  // prompt budget
  int action_dim = kModelActionDim;
  std::string_view asset_id;        // norm stats: <checkpoint>/assets/<asset_id>/norm_stats.json
  std::span<const int> delta_runs;  // run lengths as in openpi's make_bool_mask, {6, -1, 6, -1}; empty: absolute
  PromptForm prompt_form = PromptForm::kPi0;
  std::string_view default_prompt;     // empty: the caller must give one
  std::span<const double> reset_pose;  // metadata sent to clients; empty: none
};

// All presets, in the order of openpi's documentation.
std::span<const Preset> all_presets();

// Throws kBadUse for an unknown name, with the nearest name and the list of all.
const Preset& find_preset(std::string_view name);

// True for the dims whose model output is relative to the current state; one entry per dim that delta_runs covers.
// Empty when every action is absolute.
std::vector<bool> delta_mask(const Preset& preset);

// Slot index 0..2 of a camera called by slot name, short name ("base", "left", "right"), the preset's observation key
// or the last part of that key ("cam_high"). Throws kBadUse for an unknown name or a camera the robot does not have.
int camera_slot(const Preset& preset, std::string_view name);

// Throws kBadInput if a required camera is missing, listing what was given and what is wanted.
void check_cameras(const Preset& preset, const std::array<bool, kCameraSlots>& given);

}  // namespace tendon
