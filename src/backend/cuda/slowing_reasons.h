// Why a card's clocks are lower than they could be, from NVML's bits.
#pragma once

#include <string>
#include <utility>

namespace tendon {

// "power cap, heat"; empty for an idle card and for clocks that somebody chose.
inline std::string slowing_reasons(unsigned long long bits) {
  constexpr std::pair<unsigned long long, const char*> kReasons[] = {{0x04, "power cap"},
                                                                     {0x08, "hardware slowdown"},
                                                                     {0x20, "heat"},
                                                                     {0x40, "heat (hardware)"},
                                                                     {0x80, "external power brake"}};
  std::string text;
  for (const auto& [bit, reason] : kReasons) {
    if ((bits & bit) != 0) text += (text.empty() ? "" : ", ") + std::string(reason);
  }
  return text;
}

}  // namespace tendon
