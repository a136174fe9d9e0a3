// The starting noise of a call, reproducible on every platform.
//
// Element i of request k under seed s: z = splitmix64(splitmix64(s) + k), then for pair j = i / 2
//   u1 = ((splitmix64(z + 2j) >> 11) + 1)·2⁻⁵³, u2 = (splitmix64(z + 2j + 1) >> 11)·2⁻⁵³,
//   even i: sqrt(-2 ln u1)·cos(2π·u2), odd i: sqrt(-2 ln u1)·sin(2π·u2)   (Box–Muller in f64, rounded to f32).
// The k-th request of a seeded process therefore gets the same noise whoever sends it.
#pragma once

#include <cstdint>
#include <span>

namespace tendon {

void fill_noise(uint64_t seed, uint64_t request, std::span<float> out) noexcept;

}  // namespace tendon
