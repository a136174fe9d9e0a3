// What one call of the engine takes, in the network's own units.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace tendon {

class PooledFrame;

// RGB, (size, size, 3), height-width-channel: u8, or f32 in [-1, 1]; `planar`, u8 only: (3, size, size). A masked
// camera needs no pixels and those it has do not matter.
struct CameraView {
  const void* pixels = nullptr;
  DType dtype = DType::kU8;
  bool active = false;
  // In place of pixels: u8 of any size, filled, in the engine's own pool (Engine::frames), until the call has returned.
  const PooledFrame* frame = nullptr;
  bool planar = false;
};

// Real-time chunking: what is left of the previous chunk, in the network's units, row i for this call's row i.
struct PreviousChunk {
  std::span<const float> actions;   // (H, action_dim); empty: the call continues nothing
  std::span<const float> guidance;  // (H, action_dim): weights, 0 to 1; read when the chunk is guided
  int64_t frozen_rows = 0;          // the first rows, which are given; read by the other modes
};

struct Sample {
  std::vector<CameraView> cameras;  // one per slot, in slot order
  std::span<const int32_t> tokens;  // valid prompt tokens, without padding, at most max_token_len
  std::span<const float> state;     // (action_dim), normalised and zero-padded; not read by π0.5
  std::span<const float> noise;     // (H, action_dim), standard normal
  PreviousChunk previous = {};      // only where the engine has EngineOptions::chunking
};

// The order of the camera slots in openpi.
inline constexpr std::string_view kCameraSlotNames[] = {"base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"};

}  // namespace tendon
