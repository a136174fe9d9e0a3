// The words of device code that kernels use, for the shim: qualifiers, intrinsics, vector types.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "backend/sim/simt.h"

#define TENDON_DEVICE inline
#define TENDON_KERNEL
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)
// Where a wave or block operation is called from: part of its signature.
#define TENDON_HERE const tendon::simt::Here& here = tendon::simt::Here::current()

// name: the block's dynamic shared memory, unsigned char, 16-byte aligned.
#define TENDON_DYNAMIC_SHARED(name) \
  unsigned char* const name = static_cast<unsigned char*>(tendon::simt::dynamic_shared())
// T name[count], one for the block.
#define TENDON_SHARED(T, name, count) \
  T(&name)[count] = *static_cast<T(*)[count]>(tendon::simt::static_shared(#name, sizeof(T[count])))

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline int __popc(unsigned bits) { return std::popcount(bits); }

// Threads run one at a time and only stop at barriers, so plain accesses are atomic and ordered.
inline void __threadfence() {}
inline void __threadfence_block() {}
template <class T>
T atomicAdd(T* p, T value) {
  const T old = *p;
  *p = old + value;
  return old;
}
template <class T>
T atomicMax(T* p, T value) {
  const T old = *p;
  if (value > old) *p = value;
  return old;
}
template <class T>
T atomicMin(T* p, T value) {
  const T old = *p;
  if (value < old) *p = value;
  return old;
}
template <class T>
T atomicExch(T* p, T value) {
  const T old = *p;
  *p = value;
  return old;
}
template <class T>
T atomicCAS(T* p, T expected, T value) {
  const T old = *p;
  if (old == expected) *p = value;
  return old;
}
inline unsigned atomicInc(unsigned* p, unsigned last) {
  const unsigned old = *p;
  *p = old >= last ? 0 : old + 1;
  return old;
}

namespace tendon::simt {

// What lane i of a wave gives and gets.
template <class T>
struct Exchange {
  T value;
  int argument;
  T result;
};
template <class T, class From>
T exchange(const char* name, T value, int argument, const Here& at) {
  Exchange<T> mine{value, argument, value};
  wave_collective(
      name, &mine,
      [](void* const* lanes) {
        for (int i = 0; i < kWaveSize; ++i) {
          auto& to = *static_cast<Exchange<T>*>(lanes[i]);
          const int from = From::lane(i, to.argument);
          if (from >= 0 && from < kWaveSize) to.result = static_cast<Exchange<T>*>(lanes[from])->value;
        }
      },
      at);
  return mine.result;
}
struct FromXor {
  static int lane(int mine, int mask) { return mine ^ mask; }
};
struct FromLane {
  static int lane(int, int lane) { return lane & (kWaveSize - 1); }
};
struct FromBelow {
  static int lane(int mine, int delta) { return mine - delta; }
};
struct FromAbove {
  static int lane(int mine, int delta) { return mine + delta; }
};

struct Vote {
  bool value;
  uint64_t ballot;
};
inline uint64_t ballot(bool value, const Here& at) {
  Vote mine{value, 0};
  wave_collective(
      "a vote", &mine,
      [](void* const* lanes) {
        uint64_t all = 0;
        for (int i = 0; i < kWaveSize; ++i) all |= uint64_t{static_cast<Vote*>(lanes[i])->value} << i;
        for (int i = 0; i < kWaveSize; ++i) static_cast<Vote*>(lanes[i])->ballot = all;
      },
      at);
  return mine.ballot;
}

}  // namespace tendon::simt

inline void __syncthreads(TENDON_HERE) { tendon::simt::block_barrier(here); }
inline void __syncwarp(TENDON_HERE) {
  int nothing = 0;
  tendon::simt::wave_collective(
      "a wave barrier", &nothing, [](void* const*) {}, here);
}
// Masks must name the whole wave: that is what the shim gathers.
template <class T>
T __shfl_xor_sync(uint64_t, T value, int mask, TENDON_HERE) {
  return tendon::simt::exchange<T, tendon::simt::FromXor>("shuffle_xor", value, mask, here);
}
template <class T>
T __shfl_sync(uint64_t, T value, int lane, TENDON_HERE) {
  return tendon::simt::exchange<T, tendon::simt::FromLane>("shuffle", value, lane, here);
}
template <class T>
T __shfl_up_sync(uint64_t, T value, int delta, TENDON_HERE) {
  return tendon::simt::exchange<T, tendon::simt::FromBelow>("shuffle_up", value, delta, here);
}
template <class T>
T __shfl_down_sync(uint64_t, T value, int delta, TENDON_HERE) {
  return tendon::simt::exchange<T, tendon::simt::FromAbove>("shuffle_down", value, delta, here);
}
inline uint64_t __ballot_sync(uint64_t, bool value, TENDON_HERE) { return tendon::simt::ballot(value, here); }
inline bool __any_sync(uint64_t, bool value, TENDON_HERE) { return tendon::simt::ballot(value, here) != 0; }
inline bool __all_sync(uint64_t, bool value, TENDON_HERE) {
  return std::popcount(tendon::simt::ballot(value, here)) == tendon::simt::kWaveSize;
}
