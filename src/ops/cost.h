// What an operation costs in the ideal: the bytes that must move and the arithmetic that must be done.
#pragma once

#include <vector>

#include "ops/ops.h"

namespace tendon {

struct Cost {
  double flops = 0;         // multiply and add count as two
  double read_bytes = 0;    // every input once
  double write_bytes = 0;   // every output once
  double weight_bytes = 0;  // of the read bytes, those of tensors that no operation of the list writes
  double bytes() const { return read_bytes + write_bytes; }
  Cost& operator+=(const Cost& other);
};

// Attention is counted over the whole key capacity.
Cost cost(const Op& op);

}  // namespace tendon
