// What the fuzz targets share: the only exception that bytes from outside may cause is Error(kBadInput).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/check.h"

namespace tendon::fuzz {

// Runs `parse`; another kind of Error, or another exception, ends the program, which libFuzzer reports as a crash.
template <class Parse>
void only_bad_input(const Parse& parse) {
  try {
    parse();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kBadInput || std::string_view(error.what()).empty()) std::abort();
  }
}

inline std::string_view to_text(const uint8_t* data, size_t bytes) {
  return {reinterpret_cast<const char*>(data), bytes};
}

}  // namespace tendon::fuzz
