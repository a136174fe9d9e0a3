// Errors. Loading, planning and tuning throw tendon::Error; the inference path returns Status (status.h).
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace tendon {

// What kind of trouble an Error reports; the command line maps it to an exit code.
enum class ErrorKind {
  kBadUse,    // wrong arguments or options (exit code 2)
  kBadInput,  // a file, checkpoint, image or number is unusable (exit code 3)
  kDevice,    // missing, unsupported or failing device, or not enough memory (exit code 4)
  kInternal,  // a broken invariant of tendon itself (exit code 4)
};

// One paragraph for a person: what is wrong, where, what was expected and found, and what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string message) : std::runtime_error(std::move(message)), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

template <class... A>
[[noreturn]] void throw_bad_input(fmt::format_string<A...> format, A&&... args) {
  throw Error(ErrorKind::kBadInput, fmt::format(format, std::forward<A>(args)...));
}

template <class... A>
[[noreturn]] void throw_bad_use(fmt::format_string<A...> format, A&&... args) {
  throw Error(ErrorKind::kBadUse, fmt::format(format, std::forward<A>(args)...));
}

template <class... A>
[[noreturn]] void throw_device(fmt::format_string<A...> format, A&&... args) {
  throw Error(ErrorKind::kDevice, fmt::format(format, std::forward<A>(args)...));
}

[[noreturn]] void throw_check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace tendon

// For invariants of tendon's own code; wrong user input goes through throw_bad_input / throw_bad_use instead.
#define TENDON_CHECK(condition, ...)                                                          \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      ::tendon::throw_check_failed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
    }                                                                                         \
  } while (false)
