// The backends of a build, by name.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/log.h"

namespace tendon {

struct BackendOptions {
  int threads = 0;    // CPU: 0 takes all cores this process may use
  int device = 0;     // GPU index
  bool graph = true;  // GPU: launch a plan as one captured graph
  LogSink log = {};
  bool portable_kernels = false;  // GPU: only kernels that run on any card of the vendor since Ampere, and no library
  // GPU: a file in place of the built-in table (backend/gemm/table.h); "none": no table, the library's own choice.
  std::string gemm_table = {};
  // GPU: leave out kernels whose name, as `tendon info` shows it, holds one of these words. What is left takes over.
  std::vector<std::string> without = {};
};

// "cpu", or "" for the best one present. Throws Error(kBadUse) for a name this build does not know, listing those it
// does, and Error(kDevice) when the device is missing.
std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& options = {});

// A backend that a program can have beside the cpu's.
struct BackendKind {
  std::string_view name;
  bool (*is_present)();
  std::unique_ptr<Backend> (*make)(const BackendOptions& options);
};
// make_backend over these kinds: the first one present is the best.
std::unique_ptr<Backend> make_backend_of(std::span<const BackendKind> kinds, std::string_view name,
                                         const BackendOptions& options);

}  // namespace tendon
