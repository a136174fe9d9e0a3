// Where weights come from: a checkpoint on disk or the synthetic rule, under one set of names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/tensor.h"
#include "base/value_rule.h"

namespace tendon {

// Names are the canonical ones: openpi's PyTorch layout without a leading "model.", for instance
// "paligemma_with_expert.gemma_expert.model.layers.0.self_attn.q_proj.weight".
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // Every tensor there is, sorted by canonical name.
  virtual const std::vector<std::string>& names() const = 0;
  virtual bool contains(std::string_view name) const = 0;

  // Host view of a stored tensor (dtype and shape as stored), valid as long as the source lives.
  // Throws Error(kBadInput) when there is none of this name.
  virtual Tensor tensor(std::string_view name) const = 0;

  // Type and shape of that tensor. Its memory may be missing (null) where the values are only made when tensor() asks.
  virtual Tensor header(std::string_view name) const { return tensor(name); }
  // The rule behind its values, where there is one: a device can then make them itself.
  virtual std::optional<ValueRule> rule(std::string_view /*name*/) const { return {}; }

  // What to call this source in messages: a path or "synthetic:pi0".
  virtual const std::string& description() const = 0;
};

}  // namespace tendon
