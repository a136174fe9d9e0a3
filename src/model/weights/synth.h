// Synthetic checkpoints and inputs, defined by a rule instead of a file: every value is a pure function of a tensor
// name and a flat element index, so any program can make the same 7 GB again.
//
//   h = splitmix64(fnv1a64(NAME) + i),  r = (h >> 40)·2⁻²³ - 1 in [-1, 1),  stored = bf16(f32(offset + scale·r))
//
// with offset and scale by the kind of tensor (synth.cc). Values do not depend on the shape except through the scale.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/value_rule.h"
#include "checkpoint/tensor_source.h"
#include "model/config.h"

namespace tendon {

uint64_t fnv1a64(std::string_view text);

// The rule of the weight `name` of this shape.
ValueRule synthetic_rule(const std::string& name, const Shape& shape);
// Elements first..first+count of the weight `name` of this shape, as stored.
void synthetic_weight(const std::string& name, const Shape& shape, int64_t first, int64_t count, Bf16* out);

// Inputs of sample b of a batch.
// u8 (size, size, 3), RGB; camera is a slot name: "base_0_rgb", ….
std::vector<uint8_t> synthetic_image(const std::string& camera, int64_t size, int64_t sample = 0);
// (horizon, action_dim), uniform with unit variance.
std::vector<float> synthetic_noise(int64_t horizon, int64_t action_dim, int64_t sample = 0);
// (dim), in [-1, 1).
std::vector<float> synthetic_state(int64_t dim, int64_t sample = 0);
// `count` token ids, the first one 2 (BOS).
std::vector<int32_t> synthetic_prompt(int64_t count, int64_t vocab, int64_t sample = 0);

// Done and total elements; called from one thread now and then.
using Progress = std::function<void(double done, double total)>;

// When the values of a synthetic checkpoint are made.
enum class Making { kAtOnce, kWhenAsked };

// A checkpoint in memory. Everything but the expert's unused lm_head is there, in bf16.
class SyntheticSource final : public TensorSource {
 public:
  // Throws Error(kDevice) when the memory cannot be had. kWhenAsked: a tensor's values are made, and its memory taken,
  // by the first call of tensor() for it; `progress` is not called.
  SyntheticSource(const ModelConfig& config, std::string description, const Progress& progress = {},
                  Making making = Making::kAtOnce);
  ~SyntheticSource() override;
  SyntheticSource(const SyntheticSource&) = delete;
  SyntheticSource& operator=(const SyntheticSource&) = delete;

  const std::vector<std::string>& names() const override { return names_; }
  bool contains(std::string_view name) const override { return tensors_.find(name) != tensors_.end(); }
  Tensor tensor(std::string_view name) const override;
  Tensor header(std::string_view name) const override;
  std::optional<ValueRule> rule(std::string_view name) const override;
  const std::string& description() const override { return description_; }
  size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    Tensor tensor;
    bool made = false;
  };
  Entry& entry(std::string_view name) const;

  std::string description_;
  std::vector<std::string> names_;
  mutable std::mutex mutex_;  // guards `made` and the values
  mutable std::map<std::string, Entry, std::less<>> tensors_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
};

// Parses "synthetic:pi0", "synthetic:pi05", "synthetic:pi0-tiny", "synthetic:pi05-tiny"; nothing for any other text
// that does not begin with "synthetic:", Error(kBadUse) for one that does.
std::optional<ModelConfig> parse_synthetic(std::string_view checkpoint);

// Writes model.safetensors and config.json into `directory` (made if absent), streamed. Throws Error(kBadInput) when
// they cannot be written.
void write_synthetic_checkpoint(const ModelConfig& config, const std::string& directory, DType dtype,
                                const Progress& progress = {});

}  // namespace tendon
