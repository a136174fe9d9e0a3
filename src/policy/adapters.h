// Robot conventions around the model: ALOHA signs and grippers, relative actions, width of the reply. All in double.
#pragma once

#include <span>
#include <vector>

#include "policy/preset/presets.h"

namespace tendon {

inline constexpr int kAlohaWidth = 14;  // left joints 6, left gripper, right joints 6, right gripper

// Gripper position of the ALOHA runtime (0 closed, 1 open) to the angle the model was trained on; the intermediate
// linkage term is clamped, so every value above about 1 gives 0.945653. Source: openpi policies/aloha_policy.py.
double aloha_gripper_in(double position);
// Model gripper value to the ALOHA runtime. Not the inverse of aloha_gripper_in, by design; not clamped.
double aloha_gripper_out(double value);
// Inverse of aloha_gripper_out: a robot-side action back to model space.
double aloha_gripper_action_in(double action);

// In place on 14 values, radians and gripper positions: flips joints 1, 2, 8, 9 and maps grippers 6, 13.
void aloha_state_in(std::span<double> state);
// In place on one row of 14 (model to robot), and its exact inverse (robot to model).
void aloha_action_out(std::span<double> action);
void aloha_action_in(std::span<double> action);

// Adds state[i] to column i of every row where mask[i]. `actions` (rows, width) row-major, unnormalised; `state` is
// the current unnormalised state in model space. The same state for every row: chunks are not cumulative.
void add_state(std::span<double> actions, int width, std::span<const double> state, const std::vector<bool>& mask);

// The first `kept` columns of every row of `actions` (rows, width).
std::vector<double> slice_columns(std::span<const double> actions, int width, int kept);

struct AdapterOptions {
  bool adapt_to_pi = true;  // ALOHA only; openpi's adapt_to_pi, on in every published configuration
};

// Robot state, before normalisation, in model space. `state` must have the robot's state_width finite values; throws
// kBadInput otherwise, naming the count or the index.
std::vector<double> robot_state_in(const Preset& preset, std::span<const double> state,
                                   const AdapterOptions& options = {});

// Unnormalised model output (rows, width) to the reply (rows, robot action_width): adds `model_state` (the result of
// robot_state_in) on the preset's relative dims, drops padding columns, converts to the robot's conventions.
std::vector<double> robot_actions_out(const Preset& preset, std::span<const double> actions, int width,
                                      std::span<const double> model_state, const AdapterOptions& options = {});

// The way back: a reply's rows (rows, robot action_width) to unnormalised model output of the same shape, relative to
// `model_state`, the state of now. robot_actions_out with that state gives the rows again.
std::vector<double> robot_actions_in(const Preset& preset, std::span<const double> actions,
                                     std::span<const double> model_state, const AdapterOptions& options = {});

}  // namespace tendon
