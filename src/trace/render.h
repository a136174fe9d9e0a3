// A summary, or two beside each other, as text for people or programs.
#pragma once

#include <string>

#include "trace/summary.h"

namespace tendon::trace {

enum class Format { kMarkdown, kCsv, kJson };

// What a report shows below its totals.
enum class By { kAll, kStage, kOp, kKernel };

// Raised when a field changes its name or meaning. docs/trace.md lists the fields.
inline constexpr int kReportSchema = 1;

std::string render(const Summary& summary, Format format, By by = By::kAll);

// Rows of both by stage and name, largest difference first. `top`: the most rows.
std::string render_difference(const Summary& a, const Summary& b, Format format, size_t top = 30);

}  // namespace tendon::trace
