#include "trace/trace.h"

namespace tendon::trace {

uint32_t Strings::add(std::string_view text) {
  if (const auto found = numbers_.find(text); found != numbers_.end()) return found->second;
  const auto number = static_cast<uint32_t>(texts_.size());
  numbers_.emplace(texts_.emplace_back(text), number);
  return number;
}

std::string_view tool_name(Tool tool) {
  switch (tool) {
    case Tool::kTendon:
      return "tendon";
    case Tool::kPyTorch:
      return "PyTorch profiler";
    case Tool::kRocprof:
      return "rocprof";
    case Tool::kRocprofV3:
      return "rocprofv3";
    case Tool::kChrome:
      break;
  }
  return "Chrome trace of an unknown tool";
}

}  // namespace tendon::trace
