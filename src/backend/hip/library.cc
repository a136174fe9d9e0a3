#include "backend/hip/library.h"

#include <dlfcn.h>

#include "base/check.h"

namespace tendon::hip {
namespace {

// Newest first; the name without a number belongs to development packages.
constexpr const char* kFiles[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"};

struct Opened {
  Library library;
  bool usable = false;
  std::string why_not;
};

// The handle is kept to the end of the process: the library does not like to be closed.
Opened open_library() {
  Opened opened;
  void* handle = nullptr;
  for (const char* file : kFiles) {
    handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) {
      opened.library.file = file;
      break;
    }
    const char* const reason = dlerror();
    if (opened.why_not.empty()) opened.why_not = reason == nullptr ? file : reason;
  }
  if (handle == nullptr) return opened;
  opened.why_not.clear();
  const auto find = [&]<class F>(const char* name, F& function, bool needed) {
    function = reinterpret_cast<F>(dlsym(handle, name));
    if (function == nullptr && needed && opened.why_not.empty())
      opened.why_not = fmt::format("{} has no function {}; tendon needs HIP 5.2 or later", opened.library.file, name);
  };
#define TENDON_HIP_FIND(name, ...) find(#name, opened.library.name, true);
  TENDON_HIP_FUNCTIONS(TENDON_HIP_FIND)
#undef TENDON_HIP_FIND
  find("hipGraphUpload", opened.library.hipGraphUpload, false);
  opened.usable = opened.why_not.empty();
  return opened;
}

}  // namespace

void Library::require(Error status, const char* what) const {
  if (status == kSuccess) return;
  hipGetLastError();  // an error that is not sticky must not turn up in a later call
  throw_device("{} failed: {} ({})", what, hipGetErrorString(status), hipGetErrorName(status));
}

const Library* library(std::string* why_not) {
  static const Opened opened = open_library();
  if (why_not != nullptr) *why_not = opened.why_not;
  return opened.usable ? &opened.library : nullptr;
}

}  // namespace tendon::hip
