#include "base/check.h"

namespace tendon {

void throw_check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw Error(ErrorKind::kInternal, fmt::format("internal check failed at {}:{}: {} ({}). Please report this as a bug.",
                                                file, line, message, condition));
}

}  // namespace tendon
