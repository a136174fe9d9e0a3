// Reads traces: the Chrome trace-event JSON that tendon, PyTorch's profiler and rocprof write, and rocprofv3's own
// JSON.
#pragma once

#include <string>

#include "trace/trace.h"

namespace tendon::trace {

// Plain or gzipped. The text streams through, so memory holds the events only: about 100 bytes each. Throws
// Error(kBadInput) naming the file: missing, broken JSON or gzip data (with byte and line), a number that is none, or
// JSON that is no trace (with the keys that it has).
Trace read_trace(const std::string& path);

}  // namespace tendon::trace
