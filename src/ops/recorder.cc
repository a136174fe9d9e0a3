#include "ops/recorder.h"

namespace tendon {

Tensor Recorder::add_value(std::string name, DType dtype, const Shape& shape, Value::Kind kind) {
  Tensor tensor(dtype, shape);
  tensor.value = static_cast<int32_t>(values_.size());
  values_.push_back({std::move(name), dtype, shape, kind});
  return tensor;
}

void Recorder::keep(const Tensor& tensor, std::string name) {
  TENDON_CHECK(tensor.value >= 0 && tensor.value < static_cast<int32_t>(values_.size()), "'{}' is not a recorded value",
               name);
  Value& value = values_[static_cast<size_t>(tensor.value)];
  TENDON_CHECK(value.kind == Value::Kind::kTemporary, "'{}' is already known as '{}'", name, value.name);
  value.kind = Value::Kind::kKept;
  value.name = std::move(name);
}

Recorder::Scope::Scope(Recorder& recorder, const std::string& name) : recorder_(recorder), outer_(recorder.scope_) {
  recorder_.scope_ = outer_.empty() ? name : outer_ + "." + name;
}

}  // namespace tendon
