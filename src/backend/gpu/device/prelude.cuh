// What kernels are written in: lanes, waves, blocks, 16-byte loads, bf16 ↔ f32, fast functions. Nothing here knows an
// operation. Vendor differences live in this folder and in gpu_rt.h only.
#pragma once

#include <cstdint>

#include "backend/gpu/gpu_rt.h"
#include "base/dtype.h"

// Lanes of a wave: a macro, for it decides which tiles are compiled.
#ifdef TENDON_SIMT
#define TENDON_WAVE_LANES TENDON_WARP_SIZE
#elif defined(__HIP__)
#define TENDON_WAVE_LANES 64
#else
#define TENDON_WAVE_LANES 32
#endif

namespace tendon::gpu {

constexpr int kWarpSize = TENDON_WAVE_LANES;

TENDON_DEVICE int lane() { return static_cast<int>(threadIdx.x) & (kWarpSize - 1); }
TENDON_DEVICE int wave() { return static_cast<int>(threadIdx.x) / kWarpSize; }
#ifdef TENDON_SIMT
inline void block_sync(TENDON_HERE) { __syncthreads(here); }
inline void wave_sync(TENDON_HERE) { __syncwarp(here); }
inline float shuffle_xor(float value, int mask, TENDON_HERE) {
  return __shfl_xor_sync(~uint64_t{0}, value, mask, here);
}
#else
TENDON_DEVICE void block_sync() { __syncthreads(); }
TENDON_DEVICE void wave_sync() { __syncwarp(); }
#ifdef __HIP__
TENDON_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor(value, mask); }
#else
TENDON_DEVICE float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xffffffffU, value, mask); }
#endif
#endif

TENDON_DEVICE float wave_sum(float value) {
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
  return value;
}
TENDON_DEVICE float wave_max(float value) {
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) value = fmaxf(value, shuffle_xor(value, mask));
  return value;
}

// Sum over a block of up to 1024 threads; every thread gets it. `shared` holds one float a wave and is used once.
TENDON_DEVICE float block_sum(float value, float* shared) {
  value = wave_sum(value);
  if (lane() == 0) shared[wave()] = value;
  block_sync();
  float total = 0;
  for (int i = 0; i < static_cast<int>(blockDim.x) / kWarpSize; ++i) total += shared[i];
  return total;
}

// Largest over a block, in the same way.
TENDON_DEVICE float block_max(float value, float* shared) {
  value = wave_max(value);
  if (lane() == 0) shared[wave()] = value;
  block_sync();
  for (int i = 0; i < static_cast<int>(blockDim.x) / kWarpSize; ++i) value = fmaxf(value, shared[i]);
  return value;
}

// --- overlapping kernels (programmatic dependent launch; nothing before sm_90) -------------------------------------

// The next kernel of the stream may start; what this one writes is visible to it after its wait_for_producers().
TENDON_DEVICE void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Until the kernels in front have ended and their writes are visible.
TENDON_DEVICE void wait_for_producers() {
#if defined(TENDON_SIMT)
  simt::wait_for_producers();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// --- bf16 ---------------------------------------------------------------------------------------------------------

TENDON_DEVICE float widen(float value) { return value; }
TENDON_DEVICE float widen(Bf16 value) { return __uint_as_float(static_cast<uint32_t>(value.bits) << 16); }

TENDON_DEVICE uint32_t pack_bf16(float low, float high) {  // round to nearest even
#ifdef TENDON_SIMT
  return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
#elif defined(__HIP__)
  using Floats = float __attribute__((ext_vector_type(2)));
  using Halves = __bf16 __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(uint32_t, __builtin_convertvector(Floats{low, high}, Halves));
#else
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#endif
}
// Codes, without the scale of their row.
TENDON_DEVICE float widen(int8_t value) { return static_cast<float>(value); }
TENDON_DEVICE float widen(E4m3 value) {
  const uint32_t magnitude = value.bits & 0x7fU;
  const float size = magnitude < 8U       ? static_cast<float>(magnitude) * 0x1p-9F
                     : magnitude == 0x7fU ? __uint_as_float(0x7fc00000U)
                                          : __uint_as_float((magnitude << 20) + (120U << 23));
  return value.bits & 0x80U ? -size : size;
}
TENDON_DEVICE uint32_t pack_e4m3(float low, float high) {  // to nearest even, at most 448
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
#else
  const auto pack = [](float value) -> uint32_t {  // as to_e4m3 of base/dtype.h
    const uint32_t bits = __float_as_uint(value);
    const uint32_t sign = (bits >> 24) & 0x80U;
    const uint32_t magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U) return sign | 0x7fU;
    const float size = __uint_as_float(magnitude);
    const uint32_t code = size < 0x1p-6F ? __float_as_uint(__fadd_rn(size, 0x1p14F)) - __float_as_uint(0x1p14F)
                                         : ((magnitude + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20) - (120U << 3);
    return code == 0U ? 0U : sign | (code < 0x7eU ? code : 0x7eU);
  };
  return pack(low) | pack(high) << 8;
#endif
}
TENDON_DEVICE uint32_t pack_i8(float low, float high) {  // to nearest even, -127 to 127
  const auto pack = [](float value) {
    const float most = value > -127.0F ? value : -127.0F;
    const float kept = most < 127.0F ? most : 127.0F;
    return __float_as_uint(__fadd_rn(kept, 0x1.8p23F)) & 0xffU;  // the sum ends in the rounded number
  };
  return pack(low) | pack(high) << 8;
}
template <class T>
TENDON_DEVICE T narrow(float value);
template <>
TENDON_DEVICE float narrow<float>(float value) {
  return value;
}
template <>
TENDON_DEVICE Bf16 narrow<Bf16>(float value) {
  return Bf16{static_cast<uint16_t>(pack_bf16(value, 0.0F) & 0xffffU)};
}
// Rounded to T and back.
template <class T>
TENDON_DEVICE float rounded(float value) {
  return widen(narrow<T>(value));
}

// --- 16-byte access -----------------------------------------------------------------------------------------------

template <class T>
struct alignas(16) Vec {
  static constexpr int kSize = 16 / static_cast<int>(sizeof(T));
  T v[kSize];
};
template <class T>
TENDON_DEVICE Vec<T> load_vec(const T* p) {
  return *reinterpret_cast<const Vec<T>*>(p);
}
template <class T>
TENDON_DEVICE void store_vec(T* p, const Vec<T>& v) {
  *reinterpret_cast<Vec<T>*>(p) = v;
}

TENDON_DEVICE void store_pair(float* p, float a, float b) {
  struct alignas(8) Pair {
    float v[2];
  };
  *reinterpret_cast<Pair*>(p) = {{a, b}};
}

// Eight bf16 values, or sixteen codes, as they lie in memory.
struct alignas(16) Octet {
  uint32_t pair[4];
};
template <class T>
TENDON_DEVICE Octet load_octet(const T* p) {
  return *reinterpret_cast<const Octet*>(p);
}
template <class T>
TENDON_DEVICE void store_octet(T* p, const Octet& v) {
  *reinterpret_cast<Octet*>(p) = v;
}
TENDON_DEVICE void store_quad(Bf16* p, uint32_t first, uint32_t second) {  // two pairs, 8-byte aligned
  struct alignas(8) Quad {
    uint32_t pair[2];
  };
  *reinterpret_cast<Quad*>(p) = {{first, second}};
}
TENDON_DEVICE float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
TENDON_DEVICE float high_bf16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000U); }

// What the kernel in front may just have written is read from the second-level cache, behind wait_for_producers().
#if defined(TENDON_SIMT) || defined(__HIP__)  // nothing overlaps on a HIP card
TENDON_DEVICE Octet load_fresh(const Bf16* p) { return load_octet(p); }
TENDON_DEVICE float load_fresh_value(const Bf16* p) { return widen(*p); }
TENDON_DEVICE Vec<float> load_fresh_four(const float* p) { return load_vec(p); }
TENDON_DEVICE Vec<float> load_fresh_four(const Bf16* p) {
  struct alignas(8) Four {
    Bf16 v[4];
  };
  const Four four = *reinterpret_cast<const Four*>(p);
  return {{widen(four.v[0]), widen(four.v[1]), widen(four.v[2]), widen(four.v[3])}};
}
#else
TENDON_DEVICE Octet load_fresh(const Bf16* p) {
  Octet v;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.pair[0]), "=r"(v.pair[1]), "=r"(v.pair[2]), "=r"(v.pair[3])
               : "l"(p)
               : "memory");
  return v;
}
TENDON_DEVICE float load_fresh_value(const Bf16* p) {
  uint16_t bits;
  asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(bits) : "l"(p) : "memory");
  return widen(Bf16{bits});
}
TENDON_DEVICE Vec<float> load_fresh_four(const float* p) {
  Vec<float> v;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.v[0]), "=f"(v.v[1]), "=f"(v.v[2]), "=f"(v.v[3])
               : "l"(p)
               : "memory");
  return v;
}
TENDON_DEVICE Vec<float> load_fresh_four(const Bf16* p) {
  uint32_t pair[2];
  asm volatile("ld.global.cg.v2.u32 {%0,%1}, [%2];" : "=r"(pair[0]), "=r"(pair[1]) : "l"(p) : "memory");
  return {{low_bf16(pair[0]), high_bf16(pair[0]), low_bf16(pair[1]), high_bf16(pair[1])}};
}
#endif

// --- functions ----------------------------------------------------------------------------------------------------

// To about 2⁻²² + 2⁻²³·|x| relative, and two units in the last place: a third of the instructions of expf and division.
TENDON_DEVICE float fast_exp(float x) { return __expf(x); }
TENDON_DEVICE float fast_divide(float x, float y) { return __fdividef(x, y); }

// 2ˣ, 1/x and 1/√x by the card's own units, to a few units in the last place; what is smaller than 2⁻¹²⁶ counts as
// zero.
#if defined(TENDON_SIMT)
TENDON_DEVICE float fast_inverse_root(float x) { return 1.0F / std::sqrt(x); }
TENDON_DEVICE float fast_exp2(float x) { return std::exp2(x); }
TENDON_DEVICE float fast_reciprocal(float x) { return 1.0F / x; }
#elif defined(__HIP__)
TENDON_DEVICE float fast_inverse_root(float x) { return __builtin_amdgcn_rsqf(x); }
TENDON_DEVICE float fast_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
TENDON_DEVICE float fast_reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
#else
TENDON_DEVICE float fast_inverse_root(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TENDON_DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TENDON_DEVICE float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// ½x(1 + tanh(u)) = x / (1 + exp(-2u)), u = √(2/π)·(x + 0.044715·x³): no cancellation in the tails. The tails of
// products are as long as this is.
TENDON_DEVICE float gelu_tanh(float x) {
  constexpr float kLinear = -2.302208198F;  // -2·√(2/π)·log₂e
  constexpr float kCubic = 0.044715F * kLinear;
  return x * fast_reciprocal(1.0F + fast_exp2(x * (x * x * kCubic + kLinear)));
}
TENDON_DEVICE float silu(float x) { return fast_divide(x, 1.0F + fast_exp(-x)); }

}  // namespace tendon::gpu
