// How blocks of the persistent denoise kernels hand each other data without barriers: memory that is still to be
// written holds kEmpty in every word, and a reader polls the data itself until no word is empty any more. No number
// that is written has these bits: conversions and arithmetic make only the canonical not-a-numbers, 0x7fff and
// 0x7fffffff.
#pragma once

#include "backend/cuda/denoise/network.h"
#include "backend/cuda/device/hopper.cuh"

namespace tendon::gpu::denoise {

using namespace hopper;

constexpr uint32_t kEmpty = 0xffffffffU;

TENDON_DEVICE bool has_empty(const uint4& v) {
  return v.x == kEmpty || v.y == kEmpty || v.z == kEmpty || v.w == kEmpty;
}

// The largest word: kEmpty where one is empty.
TENDON_DEVICE uint32_t most_of(const uint4& v, uint32_t most = 0) {
  return __vimax3_u32(__vimax3_u32(most, v.x, v.y), v.z, v.w);
}

// Asks for v[i] from pointer(i): what stands there now.
template <int N, class Pointer>
TENDON_DEVICE void request(uint4 (&v)[N], Pointer pointer) {
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = load_relaxed_16(pointer(i));
}
// Reads v[i] from pointer(i) again where something of it is empty, all at once, until nothing is.
template <int N, class Pointer>
TENDON_DEVICE void settle(uint4 (&v)[N], Pointer pointer) {
  Patience patience;
  while (true) {
    bool missing = false;
#pragma unroll
    for (int i = 0; i < N; ++i) missing |= has_empty(v[i]);
    if (!missing) break;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (has_empty(v[i])) v[i] = load_relaxed_16(pointer(i));
    }
    patience.lose();
  }
  __syncwarp();
}
// Reads v[i] from pointer(i) where valid(i), until nothing of it is empty; zeros elsewhere. As long as the first is
// missing, only that one is asked for: what polls ask for delays what they wait for.
template <int N, class Pointer, class Valid>
TENDON_DEVICE void await(uint4 (&v)[N], Pointer pointer, Valid valid) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    v[i] = valid(i) ? make_uint4(kEmpty, kEmpty, kEmpty, kEmpty) : make_uint4(0, 0, 0, 0);
  }
  Patience patience;
  while (has_empty(v[0])) {
    v[0] = load_relaxed_16(pointer(0));
    patience.lose();
  }
  __syncwarp();
  bool missing;
  do {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (has_empty(v[i])) v[i] = load_relaxed_16(pointer(i));
    }
    missing = false;
#pragma unroll
    for (int i = 0; i < N; ++i) missing |= has_empty(v[i]);
    if (missing) patience.lose();
  } while (missing);
  __syncwarp();
}
// The same where all are valid, in less code: what comes behind the first is read again all at once.
template <int N, class Pointer>
TENDON_DEVICE void await(uint4 (&v)[N], Pointer pointer) {
  Patience patience;
  do {
    v[0] = load_relaxed_16(pointer(0));
    patience.lose();
  } while (has_empty(v[0]));
  __syncwarp();
  uint32_t most;
  do {
    most = 0;
#pragma unroll
    for (int i = 1; i < N; ++i) v[i] = load_relaxed_16(pointer(i));
#pragma unroll
    for (int i = 1; i < N; ++i) most = most_of(v[i], most);
    patience.lose();
  } while (most == kEmpty);
  __syncwarp();
}

// The threads that compute, without the producer's warp.
TENDON_DEVICE void compute_sync() { named_barrier(1, kThreads); }

// The reference to find faults of the exchange with (CMake's TENDON_LOOP_BARRIERS): between two stages all blocks meet
// at a counter, with release and acquire, so that no stage relies on words that are seen as soon as they are written. A
// reader that still finds an empty word stops the kernel (Patience).
#ifdef TENDON_LOOP_BARRIERS
constexpr bool kMeets = true;
#else
constexpr bool kMeets = false;
#endif

// All threads of all blocks that compute. `arrivals` counts blocks; it begins with all bits set, which is -1.
TENDON_DEVICE void meet(unsigned char* arrivals, int thread) {
  compute_sync();
  if (thread == 0) {
    uint32_t seen;
    asm volatile("atom.release.gpu.global.add.u32 %0, [%1], 1;" : "=r"(seen) : "l"(arrivals) : "memory");
    const uint32_t all = ((seen + 1) / kBlocks + 1) * kBlocks;  // nobody comes to the next meeting before this one ends
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrivals) : "memory");
    } while (seen + 1 < all);
  }
  compute_sync();
}

// Makes a part of the exchange memory empty, all blocks together.
TENDON_DEVICE void make_empty(unsigned char* memory, uint32_t bytes, int block, int thread) {
#pragma unroll 1
  for (uint32_t at = static_cast<uint32_t>(block * kThreads + thread) * 16; at < bytes; at += kBlocks * kThreads * 16) {
    store_relaxed_16(memory + at, make_uint4(kEmpty, kEmpty, kEmpty, kEmpty));
  }
}

}  // namespace tendon::gpu::denoise
