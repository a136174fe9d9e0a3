// A trace in memory, whatever tool wrote it: what ran on the device and on the host, and when.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tendon::trace {

// Text that repeats, kept once. Number 0 is the empty text.
class Strings {
 public:
  Strings() { add(""); }
  uint32_t add(std::string_view text);
  const std::string& operator[](uint32_t number) const { return texts_[number]; }
  size_t size() const { return texts_.size(); }

 private:
  std::deque<std::string> texts_;  // views of them stay valid
  std::unordered_map<std::string_view, uint32_t> numbers_;
};

enum class Kind : uint8_t {
  kKernel,    // on the device
  kCopy,      // memory copy by the device
  kFill,      // memory set by the device
  kApi,       // call of the device's runtime or driver
  kOperator,  // operator of a framework, or operation of ours, on the host's or the device's clock
  kRange,     // named by the user: a profiler's annotation, or a stage of ours
  kOther,
};

enum class Tool { kTendon, kPyTorch, kRocprof, kRocprofV3, kChrome };
std::string_view tool_name(Tool tool);

// Text fields are numbers of Trace::strings.
struct Event {
  int64_t start_ns = 0;  // since the first event of the trace
  int64_t duration_ns = 0;
  int64_t correlation = -1;  // the same for a launch and its kernel
  int64_t external = -1;     // the same for an operator and what it launched
  double flops = 0;          // stated by the trace
  int64_t bytes = 0;         // moved by a copy
  uint32_t name = 0;
  uint32_t lane = 0;   // of Trace::lanes
  uint32_t shape = 0;  // of an operator's inputs: "[[788,2048],[2048,2560]]"; ours: "linear x[788, 2048] bf16, …"
  uint32_t types = 0;  // of an operator's inputs: "[c10::BFloat16,c10::BFloat16]"
  uint32_t grid = 0;   // of a kernel: "[2,66,1]"
  uint32_t op = 0;     // ours: the operation, "norm_qkv_rope"
  uint32_t stage = 0;  // ours: "vision", "prefix", "denoise.3"
  Kind kind = Kind::kOther;

  int64_t end_ns() const { return start_ns + duration_ns; }
};

// One row of a trace viewer.
struct Lane {
  std::string process, thread;  // names, or numbers where they have none
};

struct Trace {
  std::string path;
  Tool tool = Tool::kChrome;
  std::vector<std::string> devices;                        // names
  std::vector<std::pair<std::string, std::string>> facts;  // of our own traces: "commit", "untraced_ms", …
  Strings strings;
  std::vector<Lane> lanes;
  std::vector<Event> events;       // by start, longest first among equals
  std::vector<std::string> notes;  // what was left out in reading, and why

  const std::string& name(const Event& event) const { return strings[event.name]; }
};

}  // namespace tendon::trace
