// Turns samples into the input buffers of a bucket: pixels, packed row sources, positions, cache rows, lengths.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sample.h"
#include "model/forward.h"
#include "plan/plan.h"

namespace tendon {

class HostInputs {
 public:
  explicit HostInputs(const ForwardSpec& spec);

  // `samples` must fit the bucket (checked samples of which it was made).
  void fill(std::span<const Sample> samples);
  void write(Plan& plan) const;

 private:
  void fill_prefix(const Sample& sample, int64_t b);
  void fill_suffix(int64_t b, int64_t valid);
  void add_image(const CameraView& view);

  ModelConfig config_;
  Bucket bucket_;
  bool pack_, state_once_, state_row_;
  int64_t capacity_, suffix_rows_;

  int64_t images_filled_ = 0;
  std::vector<std::byte> images_;
  std::vector<uint8_t> prefix_mask_;
  std::vector<int32_t> prefix_sources_, prefix_positions_, prefix_cache_rows_, prefix_len_;
  std::vector<int32_t> suffix_len_, suffix_positions_, suffix_cache_rows_;
  std::vector<int32_t> state_positions_, state_cache_rows_, state_suffix_rows_, action_suffix_rows_;
  std::vector<float> state_, noise_;
};

}  // namespace tendon
