#include "harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "ops/compose.h"
#include "oracle.h"

namespace tendon::op_check {
namespace {

// The values that the operation reads and does not write: constants, as weights are in a plan.
std::vector<bool> constants_of(const Op& op, size_t values) {
  std::vector<bool> read(values);
  std::vector<bool> written(values);
  for_each_tensor(op, [&](const char*, const Tensor& tensor, Access access) {
    (access == Access::kRead ? read : written)[static_cast<size_t>(tensor.value)] = true;
  });
  for (size_t i = 0; i < values; ++i) read[i] = read[i] && !written[i];
  return read;
}

// (Nobody reads from there: every buffer has the same place, aligned, which is no memory.)
Op with_constants(Op op, const std::vector<bool>& constants) {
  constexpr uintptr_t kNowhere = uintptr_t{1} << 20;
  for_each_tensor(op, [&](const char*, Tensor& tensor, Access) {
    if (static_cast<size_t>(tensor.value) >= constants.size() || !constants[static_cast<size_t>(tensor.value)]) return;
    tensor.value = -1;
    tensor.data =
        reinterpret_cast<void*>(kNowhere + static_cast<uintptr_t>(tensor.value_offset) * dtype_bytes(tensor.dtype));
  });
  return op;
}

// Down to operations that the backend supports (null: down to basic ones).
void expand_into(const Backend* backend, const Op& op, const std::vector<bool>& constants, std::vector<Value>& values,
                 std::vector<Op>& ops) {
  if (backend != nullptr && backend->supports(with_constants(op, constants))) {
    ops.push_back(op);
    return;
  }
  Recorder recorder(values);
  if (!expand(op, recorder)) {
    if (backend != nullptr) throw_bad_use("{} has no kernel for {}", backend->name(), describe(op));
    ops.push_back(op);
    return;
  }
  values = recorder.values();
  for (const Op& part : recorder.ops()) expand_into(backend, part, constants, values, ops);
}

std::string difference_text(const Case& test, size_t buffer, int64_t index, double got, double expected, double bound) {
  std::string name = "?";
  for_each_tensor(test.op, [&](const char* tensor_name, const Tensor& tensor, Access) {
    if (tensor.value == static_cast<int32_t>(buffer)) name = tensor_name;
  });
  const Shape& shape = test.buffers[buffer].value.shape;
  return fmt::format("{}[{}, {}] is {:.9g}, expected {:.9g} ± {:.3g}", name, index / shape[-1], index % shape[-1], got,
                     expected, bound);
}

// Compares one buffer after the run.
void compare(const Case& test, size_t buffer, const OracleBuffer& oracle, const std::vector<std::byte>& before,
             const std::vector<std::byte>& after, Outcome& outcome) {
  const DType dtype = oracle.value().dtype;
  const size_t element = dtype_bytes(dtype);
  const int64_t count = oracle.value().shape.elements();
  for (int64_t i = 0; i < count; ++i) {
    const OracleBuffer::State state = oracle.state(i);
    if (state == OracleBuffer::kUntouched) {
      const size_t at = static_cast<size_t>(i) * element;
      if (std::memcmp(before.data() + at, after.data() + at, element) == 0) continue;
      outcome.failure = fmt::format("wrote to element {} of buffer {} ({}), which the operation leaves alone", i,
                                    buffer, test.buffers[buffer].value.name);
      return;
    }
    const double got = decode(oracle.value(), after.data(), i);
    if (test.buffers[buffer].loose) continue;
    if (state == OracleBuffer::kUnchecked) {
      if (std::isfinite(got)) continue;
      outcome.failure = difference_text(test, buffer, i, got, 0, INFINITY);
      return;
    }
    const double expected = oracle.number(i);
    const double bound = std::min(oracle.bound(i), test.most_difference);
    const double difference = std::fabs(got - expected);
    ++outcome.compared;
    if (!(difference <= bound) && !(std::isnan(expected) && std::isnan(got))) {
      outcome.failure = difference_text(test, buffer, i, got, expected, bound);
      return;
    }
    if (bound > 0) outcome.worst_share = std::max(outcome.worst_share, difference / bound);
  }
}

std::vector<const std::vector<std::byte>*> pointers(const std::vector<std::vector<std::byte>>& contents) {
  std::vector<const std::vector<std::byte>*> list;
  for (const std::vector<std::byte>& content : contents) list.push_back(&content);
  return list;
}

struct Prepared {
  std::vector<Value> values;                     // of the case, then temporaries
  std::vector<std::vector<std::byte>> contents;  // of the case's buffers
};

Prepared make_contents(const Case& test) {
  Prepared prepared;
  for (size_t i = 0; i < test.buffers.size(); ++i) {
    prepared.values.push_back(test.buffers[i].value);
    prepared.contents.push_back(make_bytes(test.buffers[i], i + 1));
  }
  return prepared;
}

// Plants a fault in the result; returns false when the case has no place for it.
bool plant(Tamper tamper, const Case& test, const std::vector<OracleBuffer>& oracle,
           std::vector<std::vector<std::byte>>& results) {
  for (size_t b = 0; b < test.buffers.size(); ++b) {
    const OracleBuffer& buffer = oracle[b];
    const DType dtype = buffer.value().dtype;
    const int64_t count = buffer.value().shape.elements();
    const bool is_output = !test.buffers[b].fill;
    for (int64_t step = 0; step < count; ++step) {
      const int64_t i = (step + count / 2) % count;
      const OracleBuffer::State state = buffer.state(i);
      if (state != OracleBuffer::kUntouched && test.buffers[b].loose) continue;
      if (tamper == Tamper::kWrongElement && state == OracleBuffer::kComputed) {
        const double ulps = 4 * unit_roundoff(dtype) * std::fabs(buffer.number(i));
        encode_wrong(buffer.value(), results[b].data(), i, buffer.number(i),
                     std::max({3 * buffer.bound(i), ulps, 1e-30}));
        return true;
      }
      if (tamper == Tamper::kMissingElement && state == OracleBuffer::kComputed && is_output) {
        std::fill_n(results[b].begin() + i * static_cast<int64_t>(dtype_bytes(dtype)), dtype_bytes(dtype),
                    poison(dtype));
        return true;
      }
      const bool wanted = (tamper == Tamper::kOutsideView && is_output) || (tamper == Tamper::kInput && !is_output);
      if (wanted && state == OracleBuffer::kUntouched) {
        results[b][static_cast<size_t>(i) * dtype_bytes(dtype)] ^= std::byte{1};
        return true;
      }
    }
  }
  return false;
}

size_t first_output(const Case& test) {
  for (size_t i = 0; i < test.buffers.size(); ++i) {
    if (!test.buffers[i].fill) return i;
  }
  return 0;
}

}  // namespace

Op as_planned(const Case& test) { return with_constants(test.op, constants_of(test.op, test.buffers.size())); }

std::vector<Op> operations_for(const Backend* backend, const Op& op, std::vector<Value>& values) {
  std::vector<Op> ops;
  expand_into(backend, op, constants_of(op, values.size()), values, ops);
  return ops;
}

BoundOps::BoundOps(Backend& backend, std::vector<Op> ops, const std::vector<Value>& values,
                   const std::vector<const std::vector<std::byte>*>& contents)
    : backend_(backend), operations_(ops.size()) {
  std::vector<bool> constant(values.size(), true);
  for (const Op& op : ops) {
    for_each_tensor(op, [&](const char*, const Tensor& tensor, Access access) {
      if (access != Access::kRead) constant[static_cast<size_t>(tensor.value)] = false;
    });
  }
  size_t workspace_bytes = 0;
  for (const Op& op : ops) {
    workspace_bytes = std::max(workspace_bytes, backend.workspace_bytes(with_constants(op, constant)));
  }
  for (size_t i = 0; i <= values.size(); ++i) {
    Block block;
    if (i < contents.size()) {
      block.initial = contents[i];
    } else {
      const size_t size = i == values.size() ? workspace_bytes : buffer_bytes(values[i].dtype, values[i].shape);
      block.initial = &nan_contents_.emplace_back(size, std::byte{0xff});
    }
    names_.push_back(i == values.size() ? "the workspace" : fmt::format("buffer {} ({})", i, values[i].name));
    block.memory = DeviceBlock(backend, block.initial->size() + 2 * kGuardBytes);
    blocks_.push_back(std::move(block));
  }
  reset();
  for (Op& op : ops) {
    for_each_tensor(op, [&](const char*, Tensor& tensor, Access) {
      const auto at = static_cast<size_t>(tensor.value);
      bind(tensor, values[at].shape, static_cast<char*>(blocks_[at].memory.data()) + kGuardBytes);
      if (constant[at]) tensor.value = -1;
    });
  }
  executable_ = backend.prepare(std::move(ops), static_cast<char*>(blocks_.back().memory.data()) + kGuardBytes,
                                workspace_bytes, {});
}

void BoundOps::upload(Block& block) {
  std::vector<std::byte> whole(block.initial->size() + 2 * kGuardBytes, kGuardByte);
  std::copy(block.initial->begin(), block.initial->end(), whole.begin() + kGuardBytes);
  backend_.upload(block.memory.data(), whole.data(), whole.size());
}

void BoundOps::reset() {
  for (Block& block : blocks_) upload(block);
}

std::vector<std::byte> BoundOps::read(size_t value) const {
  std::vector<std::byte> bytes(blocks_[value].initial->size());
  backend_.download(bytes.data(), static_cast<const char*>(blocks_[value].memory.data()) + kGuardBytes, bytes.size());
  return bytes;
}

void BoundOps::write(size_t value, int64_t offset_bytes, std::byte byte) {
  backend_.upload(static_cast<char*>(blocks_[value].memory.data()) + static_cast<int64_t>(kGuardBytes) + offset_bytes,
                  &byte, 1);
}

std::string BoundOps::damaged_guard() const {
  std::vector<std::byte> guard(kGuardBytes);
  const auto damaged = [&](size_t block, size_t offset) {
    backend_.download(guard.data(), static_cast<const char*>(blocks_[block].memory.data()) + offset, kGuardBytes);
    return std::any_of(guard.begin(), guard.end(), [](std::byte byte) { return byte != kGuardByte; });
  };
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (damaged(i, 0)) return fmt::format("wrote before the start of {}", names_[i]);
    if (damaged(i, kGuardBytes + blocks_[i].initial->size()))
      return fmt::format("wrote behind the end of {}", names_[i]);
  }
  return "";
}

Outcome run_case(Backend& backend, const Case& test, Tamper tamper) {
  Outcome outcome;
  Prepared prepared = make_contents(test);

  // What the composition down to basic operations gives.
  std::vector<Value> oracle_values = prepared.values;
  const std::vector<Op> basic = operations_for(nullptr, test.op, oracle_values);
  std::vector<std::vector<std::byte>> temporaries;
  temporaries.reserve(oracle_values.size());
  std::vector<OracleBuffer> buffers;
  for (size_t i = 0; i < oracle_values.size(); ++i) {
    if (i >= prepared.contents.size()) {
      temporaries.emplace_back(buffer_bytes(oracle_values[i].dtype, oracle_values[i].shape), std::byte{0xff});
    }
    buffers.emplace_back(oracle_values[i], i < prepared.contents.size() ? &prepared.contents[i] : &temporaries.back());
  }
  Oracle oracle(std::move(buffers), basic.size() > 1, std::isfinite(test.most_difference));
  for (const Op& op : basic) oracle.run(op);

  // What the backend gives, twice.
  std::vector<Value> values = prepared.values;
  const std::vector<Op> ops = operations_for(&backend, test.op, values);
  outcome.composed = ops.size() > 1;
  BoundOps bound(backend, ops, values, pointers(prepared.contents));
  std::vector<std::vector<std::byte>> results;
  OpTimes times;
  for (int run = 0; run < 2; ++run) {
    bound.reset();
    const Status status = bound.executable().run(run == 0 ? &times : nullptr);
    if (!status.is_ok()) {
      outcome.failure = fmt::format("run failed: {}", status.message());
      return outcome;
    }
    std::vector<std::vector<std::byte>> again;
    for (size_t i = 0; i < test.buffers.size(); ++i) again.push_back(bound.read(i));
    if (run == 1 && again != results) {
      outcome.failure = "two runs on the same data differ";
      return outcome;
    }
    results = std::move(again);
  }
  if (times.start_us.size() != ops.size() || times.duration_us.size() != ops.size() ||
      std::any_of(times.duration_us.begin(), times.duration_us.end(), [](double us) { return !(us >= 0.0); })) {
    outcome.failure = "the times of the operations are missing";
    return outcome;
  }

  if (tamper == Tamper::kGuardBefore) {
    bound.write(first_output(test), -1, std::byte{0});
  } else if (tamper == Tamper::kGuardAfter) {
    bound.write(first_output(test), static_cast<int64_t>(results[first_output(test)].size()), std::byte{0});
  } else if (tamper != Tamper::kNone && !plant(tamper, test, oracle.buffers(), results)) {
    outcome.failure = "no place for the planted fault";
    return outcome;
  }
  outcome.failure = bound.damaged_guard();
  for (size_t i = 0; i < results.size() && outcome.ok(); ++i) {
    compare(test, i, oracle.buffers()[i], prepared.contents[i], results[i], outcome);
  }
  return outcome;
}

Outcome run_fault(Backend& backend, const Case& bad, const std::string& expected) {
  Outcome outcome;
  Prepared prepared = make_contents(bad);
  BoundOps bound(backend, {bad.op}, prepared.values, pointers(prepared.contents));
  const Status status = bound.executable().run(nullptr);
  const std::string message = status.message();
  if (status.code() != StatusCode::kBadInput) {
    outcome.failure = "wrong index data was not refused as bad input";
  } else if (message.find(op_label(bad.op)) == std::string::npos || message.find(expected) == std::string::npos) {
    outcome.failure = fmt::format("'{}' does not name {} and {}", message, op_label(bad.op), expected);
  } else {
    outcome.failure = bound.damaged_guard();
  }
  return outcome;
}

}  // namespace tendon::op_check
