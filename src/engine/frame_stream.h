// Streaming: frames follow each other so closely that the device works on two of them. Each frame's run is cut into a
// front (vision, prefix: pictures and prompt become keys and values) and a back (the denoise loop, which reads them),
// and the front of a frame may run beside the back of the one before. A frame gets the bytes of the ordinary call whose
// plan has the same kernels; it waits longer for them than an ordinary call does, since it shares the device.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace tendon {

struct StreamOptions {
  PreferredHalf preferred = PreferredHalf::kBack;
  // Fused operations to run as their parts besides those of EngineOptions::plan. {"denoise_loop"}: kernels that come
  // and go in place of one that holds nearly the whole card from the first step to the last.
  std::vector<std::string> expand = {};
};

// Frames of one bucket on one engine, which must outlive it. Calls come from one thread at a time, as the engine's do.
class FrameStream {
 public:
  // Frames that may be under way. Each has a plan with an arena and a workspace of its own: inputs, activations, keys
  // and values.
  static constexpr size_t kDepth = 2;

  // For frames that are like these samples in number, cameras and, after padding to EngineOptions::prompt_lengths,
  // prompt length. Throws Error(kBadInput) for samples that Engine::check refuses, and what planning throws.
  FrameStream(Engine& engine, std::span<const Sample> like, const StreamOptions& options = {});
  ~FrameStream();  // waits for the frames that are under way
  FrameStream(const FrameStream&) = delete;
  FrameStream& operator=(const FrameStream&) = delete;

  // Begins a frame; the samples are not read after the call, except pictures in the engine's pool (CameraView::frame),
  // which stay as they are until the frame's wait(). Allocates nothing and, where halves overlap, waits for nothing.
  // kBadInput, with nothing begun: a sample is refused or needs another plan, kDepth frames are under way, or frames of
  // another stream of the engine are. kDevice: the frame could not be begun.
  Status submit(std::span<const Sample> frame) noexcept;

  // The oldest frame's actions: (samples, H, action_dim) f32, normalised units. Its frame is over, also after kDevice
  // and kNonFinite, which leave `actions` unspecified; kBadInput (no frame, or no room for its values) leaves it
  // waiting.
  Status wait(std::span<float> actions) noexcept;

  size_t frames_under_way() const { return under_way_; }
  // Whether halves of two frames can overlap here; otherwise each frame runs in its wait().
  bool overlaps() const { return overlaps_; }
  const Plan& plan() const;  // of the first frame; the others' are alike

 private:
  Engine& engine_;
  std::vector<Engine::Slot> slots_;  // kDepth, used in turn
  size_t oldest_ = 0, under_way_ = 0;
  bool overlaps_ = true;
};

}  // namespace tendon
