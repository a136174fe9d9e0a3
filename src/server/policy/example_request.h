// Messages as a client of a preset sends them, filled by rule: for the load generator and tests.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "policy/preset/presets.h"

namespace tendon {

struct ExampleRequest {
  int height = 224, width = 224;  // of every picture
  uint64_t number = 0;            // other numbers give other pictures, states and prompts
  bool optional_cameras = true;
  std::span<const float> noise = {};    // (horizon, action_dim) under tendon's own key; empty: the server draws
  int64_t horizon = 0, action_dim = 0;  // of the noise
};

// A msgpack map with the preset's keys: uint8 pictures in the robot's layout, the state as float64 in [-0.5, 0.5], the
// prompt as text.
std::string example_request(const Preset& preset, const ExampleRequest& request);

}  // namespace tendon
