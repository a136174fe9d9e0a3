// The bytes are a trace file, plain or gzipped, as it goes through `tendon report`.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "fuzz.h"
#include "trace/read.h"
#include "trace/render.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace tendon;
  const int file = memfd_create("trace", 0);
  if (file < 0 || write(file, data, bytes) != static_cast<ssize_t>(bytes)) std::abort();
  fuzz::only_bad_input([&] {
    const trace::Trace trace = trace::read_trace("/proc/self/fd/" + std::to_string(file));
    const trace::Summary summary = trace::summarize(trace, {.layers = {.vision = 2, .prefix = 2}});
    if (summary.busy_us > summary.span_us + 1) std::abort();
    (void)render(summary, trace::Format::kMarkdown);
    (void)render(summary, trace::Format::kJson);
    (void)render_difference(summary, summary, trace::Format::kCsv);
  });
  close(file);
  return 0;
}
