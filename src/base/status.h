// Result of a call that must not throw (the inference path).
#pragma once

#include <array>
#include <cstdarg>
#include <cstdio>

namespace tendon {

enum class StatusCode { kOk, kBadInput, kDevice, kNonFinite, kInternal };

// Fixed-size, so that reporting an error allocates nothing.
class [[nodiscard]] Status {
 public:
  Status() = default;
  static Status ok() { return {}; }

  [[gnu::format(printf, 2, 3)]] static Status error(StatusCode code, const char* format, ...) noexcept {
    Status status;
    status.code_ = code;
    va_list args;
    va_start(args, format);
    std::vsnprintf(status.message_.data(), status.message_.size(), format, args);
    va_end(args);
    return status;
  }

  bool is_ok() const noexcept { return code_ == StatusCode::kOk; }
  StatusCode code() const noexcept { return code_; }
  const char* message() const noexcept { return message_.data(); }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::array<char, 504> message_{};
};

}  // namespace tendon
