// A source of tensors that have names and shapes but no numbers, for code that looks at nothing else.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "checkpoint/tensor_source.h"
#include "model/weights/weights.h"

namespace tendon::test {

// An address that is not null and must not be read.
inline void* no_memory() {
  static char byte;
  return &byte;
}

class ShapeSource final : public TensorSource {
 public:
  // The whole stored layout, without the expert's unused head.
  explicit ShapeSource(const ModelConfig& config) {
    for (const WeightSpec& spec : stored_layout(config)) {
      if (!spec.name.ends_with("gemma_expert.lm_head.weight")) set(spec.name, spec.shape);
    }
  }

  void set(const std::string& name, const Shape& shape) {
    shapes_[name] = shape;
    refresh();
  }
  void drop(const std::string& name) {
    shapes_.erase(name);
    refresh();
  }

  const std::vector<std::string>& names() const override { return names_; }
  bool contains(std::string_view name) const override { return shapes_.find(name) != shapes_.end(); }
  Tensor tensor(std::string_view name) const override {
    const auto found = shapes_.find(name);
    if (found == shapes_.end()) throw_bad_input("no tensor '{}'", name);
    return {DType::kBf16, found->second, no_memory()};
  }
  const std::string& description() const override { return description_; }

 private:
  void refresh() {
    names_.clear();
    for (const auto& [name, shape] : shapes_) names_.push_back(name);
  }

  std::map<std::string, Shape, std::less<>> shapes_;
  std::vector<std::string> names_;
  std::string description_ = "test source";
};

// The message of the Error of this kind that f throws.
template <class F>
std::string message_of(ErrorKind kind, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.kind() == kind ? error.what() : std::string("wrong kind: ") + error.what();
  }
  return "nothing thrown";
}

inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace tendon::test
