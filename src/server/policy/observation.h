// From a client's message to an observation: which keys a preset reads and what they may hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/shared_work.h"
#include "policy/policy.h"
#include "wire/value.h"

namespace tendon {

// Private key of tendon: initial noise (H, action_dim) or (1, H, action_dim), for tests of parity.
inline constexpr std::string_view kNoiseKey = "tendon/noise";

struct RequestDefaults {
  std::optional<std::string> prompt;  // of the command line, else of the preset; when the message has none
  std::vector<int32_t> tokens;        // used in place of every prompt when not empty
  int64_t horizon = 0, action_dim = 0;
  bool chunking = false;    // real-time chunking is offered
  RunParts run_parts = {};  // threads for scaling
  int image_side = 0;       // scale pictures while they are read, straight from the message; 0: leave them as they are
  FramePool* frames =
      nullptr;  // with image_side: put them there instead, as far as there is room, for the engine to scale
};

// A picture as the policy takes it: scaled, or in the pool for the engine to scale.
struct ReadyPicture {
  Image image;
  PooledFrame frame;
};
// Throws Error(kBadInput) for a picture that is too narrow to be scaled.
ReadyPicture make_ready(const ImageView& picture, const RequestDefaults& defaults);

class PicturesAhead;

struct RobotRequest {
  Observation observation;
  CameraFrames frames;                      // pictures that were put there, in place of the observation's
  std::optional<std::vector<float>> noise;  // row-major
};

// Source: openpi policies/{aloha,droid,libero}_policy.py. Pictures: uint8, other integers and booleans in 0..255, or
// floats in [0, 1], which become trunc(255 x). Unknown keys are ignored, except unknown cameras where the preset has a
// map of cameras. Pictures of the model's size are lent: the message must outlive the call. `ahead`: pictures that were
// made ready while the message was on its way. Throws Error(kBadInput) naming the key, what it holds and what is
// wanted.
RobotRequest read_request(const WireValue& message, const Preset& preset, const RequestDefaults& defaults,
                          PicturesAhead* ahead = nullptr);

// The pictures of the preset's cameras in what is whole of a message, those that read_request would take as they lie
// there.
std::vector<ImageView> pictures_in(const WireValue& message, const Preset& preset);

}  // namespace tendon
