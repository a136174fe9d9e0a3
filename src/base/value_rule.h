// Values that a rule makes instead of a file: a pure function of a seed and the element's index, so that the host and a
// device make the same bits.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tendon {

// Element i: h = splitmix64(seed + i), r = (h >> 40)·2⁻²³ - 1 in [-1, 1), value = bf16(f32(offset + scale·r)), with the
// product and the sum each rounded in f64.
struct ValueRule {
  uint64_t seed = 0;
  double offset = 0, scale = 0;
};

inline constexpr double kValueRuleUnit = 1.0 / 8388608.0;  // 2⁻²³

constexpr uint64_t splitmix64(uint64_t z) {
  z += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace tendon
