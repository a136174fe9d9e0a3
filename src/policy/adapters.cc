#include "policy/adapters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "base/check.h"

namespace tendon {
namespace {

constexpr std::array<size_t, 4> kFlippedJoints = {1, 2, 8, 9};
constexpr std::array<size_t, 2> kGrippers = {6, 13};

// Gripper linkage of the ALOHA robot: linear opening in metres, crank and rod lengths in metres.
constexpr double kOpeningMin = 0.01844;
constexpr double kOpeningMax = 0.05800;
constexpr double kCrankLength = 0.022;
constexpr double kRodLength = 0.036;
// Gripper angle range of the model's training data, radians.
constexpr double kAngleMin = 0.5476;
constexpr double kAngleMax = 1.6296;
// Gripper joint range of the ALOHA runtime, radians.
constexpr double kJointMin = -0.6213;
constexpr double kJointMax = 1.4910;

void flip_joints(std::span<double> values) {
  TENDON_CHECK(values.size() == kAlohaWidth, "an ALOHA vector of {}", values.size());
  for (const size_t dim : kFlippedJoints) values[dim] = -values[dim];
}

size_t row_count(std::span<const double> actions, int width) {
  TENDON_CHECK(width > 0 && actions.size() % static_cast<size_t>(width) == 0, "{} actions in rows of {}",
               actions.size(), width);
  return actions.size() / static_cast<size_t>(width);
}

}  // namespace

double aloha_gripper_in(double position) {
  const double opening = position * (kOpeningMax - kOpeningMin) + kOpeningMin;
  const double sine =
      (kCrankLength * kCrankLength + opening * opening - kRodLength * kRodLength) / (2.0 * kCrankLength * opening);
  const double angle = std::asin(std::clamp(sine, -1.0, 1.0));
  return (angle - kAngleMin) / (kAngleMax - kAngleMin);
}

double aloha_gripper_out(double value) { return (value + kAngleMin - kJointMin) / (kJointMax - kJointMin); }

double aloha_gripper_action_in(double action) { return action * (kJointMax - kJointMin) + kJointMin - kAngleMin; }

void aloha_state_in(std::span<double> state) {
  flip_joints(state);
  for (const size_t dim : kGrippers) state[dim] = aloha_gripper_in(state[dim]);
}

void aloha_action_out(std::span<double> action) {
  flip_joints(action);
  for (const size_t dim : kGrippers) action[dim] = aloha_gripper_out(action[dim]);
}

void aloha_action_in(std::span<double> action) {
  flip_joints(action);
  for (const size_t dim : kGrippers) action[dim] = aloha_gripper_action_in(action[dim]);
}

void add_state(std::span<double> actions, int width, std::span<const double> state, const std::vector<bool>& mask) {
  const size_t rows = row_count(actions, width);
  TENDON_CHECK(mask.size() <= static_cast<size_t>(width) && mask.size() <= state.size(),
               "delta mask of {} for {} actions and a state of {}", mask.size(), width, state.size());
  for (size_t row = 0; row < rows; ++row) {
    for (size_t dim = 0; dim < mask.size(); ++dim) {
      if (mask[dim]) actions[row * static_cast<size_t>(width) + dim] += state[dim];
    }
  }
}

std::vector<double> slice_columns(std::span<const double> actions, int width, int kept) {
  const size_t rows = row_count(actions, width);
  TENDON_CHECK(kept > 0 && kept <= width, "{} columns of {}", kept, width);
  std::vector<double> result;
  result.reserve(rows * static_cast<size_t>(kept));
  for (size_t row = 0; row < rows; ++row) {
    const auto values = actions.subspan(row * static_cast<size_t>(width), static_cast<size_t>(kept));
    result.insert(result.end(), values.begin(), values.end());
  }
  return result;
}

std::vector<double> robot_state_in(const Preset& preset, std::span<const double> state, const AdapterOptions& options) {
  const Robot& robot = *preset.robot;
  if (state.size() != static_cast<size_t>(robot.state_width)) {
    throw_bad_input("preset {} takes a state of {} numbers ({}), but {} were given.", preset.name, robot.state_width,
                    robot.state_meaning, state.size());
  }
  for (size_t i = 0; i < state.size(); ++i) {
    if (!std::isfinite(state[i])) {
      throw_bad_input("state element {} is {}; every element must be a finite number. Check the sensor or the file.", i,
                      state[i]);
    }
  }
  std::vector<double> result(state.begin(), state.end());
  if (robot.aloha_units && options.adapt_to_pi) aloha_state_in(result);
  return result;
}

std::vector<double> robot_actions_out(const Preset& preset, std::span<const double> actions, int width,
                                      std::span<const double> model_state, const AdapterOptions& options) {
  const Robot& robot = *preset.robot;
  std::vector<double> absolute(actions.begin(), actions.end());
  add_state(absolute, width, model_state, delta_mask(preset));
  std::vector<double> result = slice_columns(absolute, width, robot.action_width);
  if (robot.aloha_units && options.adapt_to_pi) {
    for (size_t begin = 0; begin < result.size(); begin += kAlohaWidth) {
      aloha_action_out(std::span(result).subspan(begin, kAlohaWidth));
    }
  }
  return result;
}

std::vector<double> robot_actions_in(const Preset& preset, std::span<const double> actions,
                                     std::span<const double> model_state, const AdapterOptions& options) {
  const Robot& robot = *preset.robot;
  std::vector<double> result(actions.begin(), actions.end());
  if (robot.aloha_units && options.adapt_to_pi) {
    for (size_t begin = 0; begin < result.size(); begin += kAlohaWidth) {
      aloha_action_in(std::span(result).subspan(begin, kAlohaWidth));
    }
  }
  std::vector<double> removed(model_state.begin(), model_state.end());
  std::ranges::transform(removed, removed.begin(), std::negate());
  add_state(result, robot.action_width, removed, delta_mask(preset));
  return result;
}

}  // namespace tendon
