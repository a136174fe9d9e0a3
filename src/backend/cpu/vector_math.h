// exp and the activations as branch-free arithmetic that vectorises. exp is within 2 units in the last place; the
// activations add the rounding of their argument (|x| · 2⁻²⁴ relative in the far negative tail, where they vanish).
#pragma once

#include <bit>
#include <cstdint>

#include "backend/cpu/tile.h"
#include "ops/basic_ops.h"

namespace tendon {

// eˣ = 2ⁿ · eʳ, n = round(x / ln 2), |r| ≤ ln 2 / 2. Below -87.3 it is 0, above 88 it stays at e⁸⁸; NaN stays NaN.
TENDON_CPU_INLINE float exp_f32(float x) {
  constexpr float kLowest = -87.3F;
  constexpr float kHighest = 88.0F;
  constexpr float kLog2E = 1.44269504F;
  constexpr float kShift = 12582912.0F;  // 1.5 · 2²³: adding it leaves round(·) in the low mantissa bits
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  float y = x < kLowest ? kLowest : x;
  y = y > kHighest ? kHighest : y;
  const float shifted = y * kLog2E + kShift;
  const float n = shifted - kShift;
  const float r = (y - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) << 23) + 0x3f800000U);
  const float value = p * power;
  return x < kLowest ? 0.0F : value;
}

// ½x(1 + tanh(√(2/π)(x + 0.044715x³))), written as x / (1 + e⁻²ᵘ), which loses nothing to cancellation.
TENDON_CPU_INLINE float gelu_tanh_f32(float x) {
  constexpr float kTwiceRoot = 1.5957691216F;  // 2 √(2/π)
  const float u = kTwiceRoot * (x + 0.044715F * x * x * x);
  return x / (1.0F + exp_f32(-u));
}

TENDON_CPU_INLINE float silu_f32(float x) { return x / (1.0F + exp_f32(-x)); }

TENDON_CPU_INLINE void activate(Activation activation, float* values, int64_t count) {
  if (activation == Activation::kGeluTanh) {
    for (int64_t i = 0; i < count; ++i) values[i] = gelu_tanh_f32(values[i]);
  } else if (activation == Activation::kSilu) {
    for (int64_t i = 0; i < count; ++i) values[i] = silu_f32(values[i]);
  }
}

}  // namespace tendon
