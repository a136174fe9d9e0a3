// Turns samples into the inputs of a plan, where the plan reads them: pixels, packed row sources, positions, cache
// rows, lengths.
#pragma once

#include <cstdint>
#include <span>

#include "engine/sample.h"
#include "model/forward.h"
#include "plan/plan.h"

namespace tendon {

class HostInputs {
 public:
  // `plan` was made of `spec` and must live as long as this.
  HostInputs(const ForwardSpec& spec, const Plan& plan);

  // `samples` must fit the bucket (checked samples of which it was made). Writes all inputs; allocates nothing.
  void fill(std::span<const Sample> samples);

 private:
  void fill_prefix(const Sample& sample, int64_t b);
  void fill_suffix(int64_t b, int64_t valid);
  void fill_previous(const PreviousChunk& previous, int64_t b);
  void add_image(const CameraView& view);

  ModelConfig config_;
  Bucket bucket_;
  bool pack_, first_step_differs_;
  int64_t capacity_, suffix_rows_;

  int64_t images_filled_ = 0;
  // Host memory of the plan's inputs; empty where the plan has none of the name.
  std::span<std::byte> images_;
  std::span<int32_t> frames_;
  std::span<uint8_t> prefix_mask_;
  std::span<int32_t> prefix_sources_, prefix_positions_, prefix_cache_rows_, prefix_len_;
  std::span<int32_t> suffix_len_, suffix_positions_, suffix_cache_rows_;
  std::span<int32_t> first_positions_, first_cache_rows_, state_suffix_rows_, action_suffix_rows_;
  std::span<float> state_, noise_, previous_, guidance_;
  std::span<int32_t> frozen_;
};

}  // namespace tendon
