#include "trace/record.h"

#include <charconv>
#include <cmath>
#include <unordered_map>

namespace tendon::trace {
namespace {

// 127 years: sums and differences of two such times fit as nanoseconds.
constexpr int64_t kLargestUs = int64_t{4'000'000'000'000'000};

bool fits(int64_t us) { return us >= -kLargestUs && us <= kLargestUs; }

template <class T>
std::optional<T> parsed(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

// "5316512345678.123" without the loss that a double has at such sizes.
std::optional<int64_t> decimal_us(std::string_view text) {
  const size_t dot = text.find('.');
  if (text.find_first_of("eE") != std::string_view::npos || dot == std::string_view::npos) {
    const auto value = parsed<double>(text);
    if (!value || !(std::fabs(*value) < static_cast<double>(kLargestUs))) return {};
    return std::llround(*value * 1e3);
  }
  const bool negative = text.starts_with('-');
  const auto whole = parsed<int64_t>(text.substr(0, dot));
  if (!whole || !fits(*whole)) return {};
  int64_t ns = 0;
  int64_t unit = 100;
  for (const char digit : text.substr(dot + 1)) {
    if (digit < '0' || digit > '9') return {};
    ns += unit * (digit - '0');
    unit /= 10;
  }
  return *whole * 1000 + (negative ? -ns : ns);
}

}  // namespace

Section section_of(std::string_view key) {
  static const std::unordered_map<std::string_view, Section> kSections = {
      {"traceEvents", Section::kEvents},     {"deviceProperties", Section::kDevices},
      {"otherData", Section::kFacts},        {"kernel_dispatch", Section::kDispatches},
      {"memory_copy", Section::kCopies},     {"hip_api", Section::kApi},
      {"hip_api_traces", Section::kApi},     {"hip_runtime_api", Section::kApi},
      {"kernel_symbols", Section::kSymbols}, {"agents", Section::kAgents},
      {"buffer_records", Section::kKinds},
  };
  const auto found = kSections.find(key);
  return found == kSections.end() ? Section::kNone : found->second;
}

Field field_of(std::string_view key) {
  static const std::unordered_map<std::string_view, Field> kFields = {
      {"name", Field::kName},
      {"Name", Field::kName},
      {"ph", Field::kPhase},
      {"cat", Field::kCategory},
      {"ts", Field::kTime},
      {"dur", Field::kDuration},
      {"pid", Field::kProcess},
      {"tid", Field::kThread},
      {"args", Field::kArgs},
      {"External id", Field::kExternal},
      {"external id", Field::kExternal},
      {"correlation", Field::kCorrelation},
      {"internal", Field::kCorrelation},
      {"Input Dims", Field::kDims},
      {"Input dims", Field::kDims},
      {"Input type", Field::kTypes},
      {"grid", Field::kGrid},
      {"grid_size", Field::kGrid},
      {"bytes", Field::kBytes},
      {"shape", Field::kShape},
      {"op", Field::kOp},
      {"stage", Field::kStage},
      {"flops", Field::kFlops},
      {"BeginNs", Field::kBeginNs},
      {"start_timestamp", Field::kBeginNs},
      {"EndNs", Field::kEndNs},
      {"end_timestamp", Field::kEndNs},
      {"kernel_id", Field::kKernelId},
      {"operation", Field::kOperation},
      {"kind", Field::kKind},
      {"operations", Field::kOperations},
      {"formatted_kernel_name", Field::kFormattedName},
      {"type", Field::kType},
      {"product_name", Field::kProductName},
  };
  const auto found = kFields.find(key);
  return found == kFields.end() ? Field::kUnknown : found->second;
}

std::optional<int64_t> Scalar::ns_from_us() const {
  switch (type) {
    case Type::kInteger:
      if (!fits(integer)) return {};
      return integer * 1000;
    case Type::kFloat:
      return decimal_us(text);
    case Type::kText:
      if (const auto value = parsed<int64_t>(text); value && fits(*value)) return *value * 1000;
      return decimal_us(text);
    case Type::kNull:
      break;
  }
  return {};
}

std::optional<int64_t> Scalar::ns() const {
  const std::optional<int64_t> value = as_integer();
  if (!value || !fits(*value / 1000)) return {};
  return value;
}

std::optional<int64_t> Scalar::as_integer() const {
  switch (type) {
    case Type::kInteger:
      return integer;
    case Type::kFloat:
      if (std::fabs(real) < 9e18) return static_cast<int64_t>(real);
      return {};
    case Type::kText:
      return parsed<int64_t>(text);
    case Type::kNull:
      break;
  }
  return {};
}

std::optional<double> Scalar::as_real() const {
  if (type == Type::kInteger) return static_cast<double>(integer);
  if (type == Type::kFloat) return real;
  return {};
}

}  // namespace tendon::trace
