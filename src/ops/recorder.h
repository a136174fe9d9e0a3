// Records a forward: named values and the list of operations on them. The model's forwards are plain functions over a
// Recorder; the plan places the values in memory and gives the list to a backend.
#pragma once

#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ops/ops.h"

namespace tendon {

struct Value {
  enum class Kind {
    kTemporary,  // lives from its first write to its last read
    kInput,      // written by the caller before a run; the run leaves it as it is
    kOutput,     // written by the run and handed to the caller after each
    kKept,       // lives through the whole run and can be read afterwards (taps, caches)
  };
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  Kind kind = Kind::kTemporary;
};

class Recorder {
 public:
  Recorder() = default;
  // Continues an existing list of values, to expand operations on them.
  explicit Recorder(std::vector<Value> values) : values_(std::move(values)) {}

  const std::vector<Value>& values() const { return values_; }
  const std::vector<Op>& ops() const { return ops_; }

  Tensor input(std::string name, DType dtype, const Shape& shape) {
    return add_value(std::move(name), dtype, shape, Value::Kind::kInput);
  }
  Tensor temporary(DType dtype, const Shape& shape) { return add_value({}, dtype, shape, Value::Kind::kTemporary); }
  Tensor output(std::string name, DType dtype, const Shape& shape) {
    return add_value(std::move(name), dtype, shape, Value::Kind::kOutput);
  }
  // A value that the caller can read after the run under this name.
  Tensor kept(std::string name, DType dtype, const Shape& shape) {
    return add_value(std::move(name), dtype, shape, Value::Kind::kKept);
  }
  // Gives an existing temporary a name under which it can be read after the run.
  void keep(const Tensor& tensor, std::string name);

  template <class Args>
  void add(Args args) {
    Op op{std::move(args), scope_};
    validate(op);
    ops_.push_back(std::move(op));
  }
  void add(Op op) {
    validate(op);
    ops_.push_back(std::move(op));
  }

  // Removes and returns the operations recorded since there were `mark` of them; their values stay.
  std::vector<Op> take_ops(size_t mark) {
    std::vector<Op> taken(std::make_move_iterator(ops_.begin() + static_cast<std::ptrdiff_t>(mark)),
                          std::make_move_iterator(ops_.end()));
    ops_.erase(ops_.begin() + static_cast<std::ptrdiff_t>(mark), ops_.end());
    return taken;
  }

  // Names the operations recorded while the returned object lives: scopes nest with dots.
  class Scope {
   public:
    Scope(Recorder& recorder, const std::string& name);
    ~Scope() { recorder_.scope_ = std::move(outer_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Recorder& recorder_;
    std::string outer_;
  };
  Scope scope(const std::string& name) { return {*this, name}; }
  const std::string& current_scope() const { return scope_; }

 private:
  friend class Scope;
  Tensor add_value(std::string name, DType dtype, const Shape& shape, Value::Kind kind);

  std::vector<Value> values_;
  std::vector<Op> ops_;
  std::string scope_;
};

}  // namespace tendon
