#include "engine/noise.h"

#include <cmath>
#include <numbers>

#include "model/weights/synth.h"

namespace tendon {

void fill_noise(uint64_t seed, uint64_t request, std::span<float> out) noexcept {
  const uint64_t stream = splitmix64(splitmix64(seed) + request);
  constexpr double kUnit = 0x1.0p-53;
  for (size_t i = 0; i < out.size(); i += 2) {
    const double u1 = static_cast<double>((splitmix64(stream + i) >> 11) + 1) * kUnit;
    const double u2 = static_cast<double>(splitmix64(stream + i + 1) >> 11) * kUnit;
    const double radius = std::sqrt(-2.0 * std::log(u1));
    out[i] = static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * u2));
    if (i + 1 < out.size()) out[i + 1] = static_cast<float>(radius * std::sin(2.0 * std::numbers::pi * u2));
  }
}

}  // namespace tendon
