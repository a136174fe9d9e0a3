// Every basic operation again, as loops over doubles straight from its formula, together with the error that a correct
// backend may make.
#pragma once

#include <cstdint>
#include <vector>

#include "values.h"

namespace tendon::op_check {

// A buffer as the oracle sees it: its bytes before the run, and what was computed for it.
class OracleBuffer {
 public:
  enum State : uint8_t {
    kUntouched,  // must keep its bytes
    kComputed,   // must be within `bound` of `number`
    kUnchecked,  // written, but not computed here (samples of huge products): must be finite
  };

  OracleBuffer(Value value, const std::vector<std::byte>* initial) : value_(std::move(value)), initial_(initial) {}

  const Value& value() const { return value_; }
  double number(int64_t index) const {
    return number_.empty() ? decode(value_, initial_->data(), index) : number_[static_cast<size_t>(index)];
  }
  double bound(int64_t index) const { return bound_.empty() ? 0.0 : bound_[static_cast<size_t>(index)]; }
  State state(int64_t index) const { return state_.empty() ? kUntouched : state_[static_cast<size_t>(index)]; }
  bool in_chain = false;
  bool whole = false;  // huge products are computed for every element
  void set(int64_t index, double number, double bound, State state);

 private:
  Value value_;
  const std::vector<std::byte>* initial_;
  std::vector<double> number_, bound_;
  std::vector<State> state_;
};

// Computes basic operations in order. Numbers that are stored are rounded to the buffer's type.
//
// Before it is stored, a result v may be off by e, with u32 = 2⁻²⁴ the unit roundoff of f32:
//   e = c · u32 · Σ |terms|         f32 arithmetic: the sum of the terms' sizes, c of a few units (oracle.cc);
//                                   2⁻¹² in place of c · u32 where e4m3 products are summed
//     + what the bounds of the inputs become. Inputs are exact for a single operation; in a chain, errors of different
//       elements are independent roundings, so a sum over K of them counts as 3 · √(Σ δ²).
// What is stored must then lie between round(v - e) and round(v + e) in the stored type. In a chain u · |v| is added,
// because a fused kernel may keep the intermediate result unrounded.
class Oracle {
 public:
  Oracle(std::vector<OracleBuffer> buffers, bool chain, bool whole) : buffers_(std::move(buffers)) {
    for (OracleBuffer& buffer : buffers_) buffer.in_chain = chain, buffer.whole = whole;
  }
  void run(const Op& op);
  const std::vector<OracleBuffer>& buffers() const { return buffers_; }

 private:
  std::vector<OracleBuffer> buffers_;
};

}  // namespace tendon::op_check
