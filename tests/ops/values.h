// Host copies of an operation's buffers, and how test data is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "ops/recorder.h"

namespace tendon::op_check {

// Deterministic numbers from a counter, fast enough for gigabyte weights.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 0x1234567) {}
  uint64_t bits();
  double uniform();                             // [0, 1)
  double normal();                              // about N(0, 1), |x| < 3.5
  int32_t integer(int64_t begin, int64_t end);  // begin..end-1

 private:
  uint64_t state_;
};

// Elements of a buffer with the contents of this value; codes with the scale that their row has there.
double decode(const Value& value, const void* data, int64_t index);
void encode(const Value& value, void* data, int64_t index, double number);
// Puts there what is neither `number` nor next to it.
void encode_wrong(const Value& value, void* data, int64_t index, double number, double off);
// What outputs are filled with: NaN, or the code that nothing rounds to.
std::byte poison(DType dtype);
// The largest relative error of one rounding: 2⁻²⁴ for f32, 2⁻⁸ for bf16, 2⁻⁴ for e4m3; i8: 2⁻⁸, of the row's largest.
double unit_roundoff(DType dtype);

// How the numbers of one buffer are made; sees the element's index.
using Fill = std::function<double(Random&, int64_t index)>;

struct Buffer {
  Value value;
  Fill fill;  // empty: an output, filled with NaN bytes
  // What the composition writes here, a kernel for the whole operation need not: only the rest is compared.
  bool loose = false;
};

// One operation on made-up data. Tensors of the operation refer to buffers by `value`.
struct Case {
  std::string name;  // "linear.prefix_down.bf16"
  std::vector<Buffer> buffers;
  Op op;
  bool slow = false;
  bool bench = false;       // a shape of the real models
  bool streamed = false;    // its weights come from memory, not from a cache: bench rotates copies
  bool timed_only = false;  // too large for the oracle; timed where one kernel runs it
  // Of long chains, whose inherited worst-case bounds say nothing: no difference may be larger, whatever the oracle
  // says.
  double most_difference = std::numeric_limits<double>::infinity();
};

std::vector<std::byte> make_bytes(const Buffer& buffer, uint64_t seed);

}  // namespace tendon::op_check
