// What the parser collects while it is inside one object of a trace file: the known fields, as they were written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tendon::trace {

// Which list of the file an object stands in.
enum class Section : uint8_t {
  kNone,
  kEvents,      // "traceEvents"
  kDevices,     // "deviceProperties" of PyTorch
  kFacts,       // "otherData"
  kDispatches,  // the rest: rocprofv3
  kCopies,
  kApi,
  kSymbols,
  kAgents,
  kKinds,
};

enum class Field : uint8_t {
  kUnknown,
  kName,
  kPhase,
  kCategory,
  kTime,
  kDuration,
  kProcess,
  kThread,
  kArgs,
  kExternal,
  kCorrelation,
  kDims,
  kTypes,
  kGrid,
  kBytes,
  kShape,
  kOp,
  kStage,
  kFlops,
  kBeginNs,
  kEndNs,
  kKernelId,
  kOperation,
  kKind,
  kOperations,
  kFormattedName,
  kType,
  kProductName,
};

Section section_of(std::string_view key);
Field field_of(std::string_view key);

// A number or text of the file.
struct Scalar {
  enum class Type : uint8_t { kNull, kInteger, kFloat, kText };
  Type type = Type::kNull;
  int64_t integer = 0;
  double real = 0;
  std::string_view text;  // of kText, and of kFloat as written

  // Microseconds, also as text, in nanoseconds. Nothing when it is no number of a sensible size.
  std::optional<int64_t> ns_from_us() const;
  std::optional<int64_t> ns() const;  // nanoseconds, in the same way
  std::optional<int64_t> as_integer() const;
  std::optional<double> as_real() const;
};

struct Record {
  uint32_t name = 0, argument_name = 0, category = 0, shape = 0, types = 0, grid = 0, op = 0, stage = 0;
  int64_t process = 0, thread = 0;  // names as -1 - their number
  std::optional<int64_t> start_ns, duration_ns, end_ns;
  int64_t external = -1, correlation = -1, kernel_id = -1, operation = -1, kind = -1, type = -1;
  int64_t bytes = 0;
  double flops = 0;
  char phase = 0;
};

}  // namespace tendon::trace
