// Element types and conversions between them (round to nearest even, NaN stays NaN).
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tendon {

// kE4m3 and kI8 are codes: a matrix of them has a scale for each row (Tensor::scales), the number is scale · code.
enum class DType : uint8_t { kF32, kBf16, kF16, kF64, kI64, kI32, kU8, kBool, kE4m3, kI8 };

constexpr bool is_scaled(DType dtype) { return dtype == DType::kE4m3 || dtype == DType::kI8; }

constexpr size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kU8:
    case DType::kBool:
    case DType::kE4m3:
    case DType::kI8:
      return 1;
  }
  return 0;
}

constexpr std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kI64:
      return "i64";
    case DType::kF32:
      return "f32";
    case DType::kI32:
      return "i32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kU8:
      return "u8";
    case DType::kBool:
      return "bool";
    case DType::kE4m3:
      return "e4m3";
    case DType::kI8:
      return "i8";
  }
  return "?";
}

// A bfloat16 value; arithmetic is done in float.
struct Bf16 {
  uint16_t bits = 0;
};

constexpr float to_float(Bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

constexpr Bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<uint16_t>((bits >> 16) | 0x40U)};  // keep NaN a NaN
  return {static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16)};
}

constexpr float round_to_bf16(float value) { return to_float(to_bf16(value)); }

// OCP FP8 E4M3: sign, four bits of exponent with bias 7, three of mantissa; no infinities, NaN is 0x7f and 0xff. The
// bits of a finite number other than -0 mean half of it in the FNUZ form of E4M3 that some cards have.
struct E4m3 {
  uint8_t bits = 0;
};
constexpr float kE4m3Max = 448.0F;

constexpr float to_float(E4m3 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80U) << 24;
  const uint32_t magnitude = value.bits & 0x7fU;
  if (magnitude == 0x7fU) return std::bit_cast<float>(sign | 0x7fc00000U);
  if (magnitude >= 8) return std::bit_cast<float>(sign | ((magnitude << 20) + (120U << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-9F;
  return sign == 0 ? subnormal : -subnormal;
}

// To nearest even; what is larger than 448 becomes 448. Zero has the code 0 alone: -0 would be NaN as FNUZ.
constexpr E4m3 to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<uint8_t>(sign | 0x7fU)};
  const float size = std::bit_cast<float>(magnitude);
  if (size < 0x1p-6F) {  // steps of 2⁻⁹: the sum has that step at its end, and rounds
    const uint32_t code = std::bit_cast<uint32_t>(size + 0x1p14F) - std::bit_cast<uint32_t>(0x1p14F);
    return {static_cast<uint8_t>(code == 0 ? 0 : sign | code)};
  }
  const uint32_t rounded = magnitude + 0x7ffffU + ((magnitude >> 20) & 1U);
  const uint32_t code = (rounded >> 20) - (120U << 3);
  return {static_cast<uint8_t>(sign | (code < 0x7eU ? code : 0x7eU))};
}

// To nearest even, at least -127 and at most 127.
inline int8_t to_i8(float value) {
  return static_cast<int8_t>(std::nearbyint(std::fmin(std::fmax(value, -127.0F), 127.0F)));
}

// The largest code.
constexpr float scaled_max(DType dtype) { return dtype == DType::kE4m3 ? kE4m3Max : 127.0F; }

// How a row whose largest magnitude is `largest` becomes codes: number ≈ factor · code(number · inverse). A row of
// zeros has the factor 1, one with a number that is not finite (largest = ∞) the factor ∞; where most / largest would
// overflow, the smallest numbers are lost.
struct RowScale {
  float factor = 1.0F, inverse = 1.0F;
  constexpr RowScale(float largest, DType codes) {
    if (!(largest > 0.0F)) return;
    constexpr float kLeast = 0x1p-110F;
    const float kept = largest > kLeast ? largest : kLeast;
    factor = kept / scaled_max(codes);
    inverse = scaled_max(codes) / kept;
  }
};

// IEEE binary16 bit pattern to float, exact.
constexpr float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fU;
  uint32_t mantissa = half & 0x3ffU;
  if (exponent == 0x1fU) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  uint32_t shift = 0;
  while ((mantissa & 0x400U) == 0) {
    mantissa <<= 1;
    ++shift;
  }
  return std::bit_cast<float>(sign | ((113U - shift) << 23) | ((mantissa & 0x3ffU) << 13));
}

}  // namespace tendon
