// What a report counts: the kernels of a device or, where a trace has none, the operators of the host.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/op_class.h"
#include "trace/trace.h"

namespace tendon::trace {

struct Piece {
  size_t event = 0;  // of Trace::events
  int64_t op = -1;   // the operator that launched it, of Trace::events; the event itself for operators; -1 unknown
  double us = 0;     // of an operator: its own time, without what it called
  OpClass op_class = OpClass::kOther;
};

enum class WorkKind {
  kKernels,     // by kernels
  kOperations,  // of our own traces without kernels: operations, one after the other
  kOperators,   // a framework's operators on the host
  kNothing,
};

struct Work {
  WorkKind kind = WorkKind::kNothing;
  std::vector<Piece> pieces;  // by start
};

Work find_work(const Trace& trace);

// The name that a report shows and counts by, of Trace::strings: the operation for pieces of our own, else the kernel
// or operator.
uint32_t label(const Trace& trace, const Piece& piece);

// Lists as the trace has them: "[[788,2048],[2048,2560]]". What is no list of numbers comes back empty.
std::vector<std::vector<int64_t>> parse_shapes(const std::string& text);

// out (M, N) += x (M, K) · w, `batch` times.
struct Product {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  double flops() const {
    return 2.0 * static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  bool operator==(const Product&) const = default;
};

// Of a PyTorch operator with its input shapes; m = 0 when it is no matrix product.
Product product_of(const std::string& op, const std::string& shapes);

}  // namespace tendon::trace
