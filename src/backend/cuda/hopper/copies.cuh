// Shared-memory barriers, tensor copies by TMA, clusters: the words of sm_90 that copying kernels are written in.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "backend/cuda/device/hopper.cuh"

namespace tendon::gpu::hopper {

// The kernels of this folder exist in code for sm_90a alone.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TENDON_HOPPER 1
#endif

// --- barriers in shared memory; a phase ends when all have arrived and all announced bytes have landed -------------

// What was initialised is visible to the cluster, and to copies, after the cluster's next barrier.
TENDON_DEVICE void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// At the barrier of another block of the cluster. It orders no memory accesses: release at the scope of the cluster
// would wait for all of the thread's own, about a microsecond (measured: four times the whole product).
TENDON_DEVICE void arrive_at(uint32_t barrier, int rank) {
  asm volatile(
      "{.reg .b32 remote;"
      "mapa.shared::cluster.u32 remote, %0, %1;"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
TENDON_DEVICE bool phase_ended(uint32_t barrier, uint32_t parity) {
  uint32_t ended;
  asm volatile(
      "{.reg .pred p;"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
      "selp.u32 %0, 1, 0, p;}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}
TENDON_DEVICE void wait_phase(uint32_t barrier, uint32_t parity) {
  while (!phase_ended(barrier, parity)) {
  }
}

// All threads of the cluster, without ordering memory accesses.
TENDON_DEVICE void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// --- copies of boxes of a tensor into shared memory, announced to a barrier ------------------------------------------

TENDON_DEVICE void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// To the same place in every block of the cluster whose bit in `blocks` is set. Coordinates begin with the innermost.
template <bool kMany>
TENDON_DEVICE void copy_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, uint16_t blocks, int c0, int c1) {
  if constexpr (kMany) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(c0), "r"(c1), "h"(blocks)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            to),
        "l"(map), "r"(barrier), "r"(c0), "r"(c1)
        : "memory");
  }
}
template <bool kMany>
TENDON_DEVICE void copy_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, uint16_t blocks, int c0, int c1,
                            int c2, int c3) {
  if constexpr (kMany) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(blocks)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
  }
}

TENDON_DEVICE void copy_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, int c0, int c1, int c2, int c3,
                            int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
template <bool kMany>
TENDON_DEVICE void copy_box(uint32_t to, const CUtensorMap* map, uint32_t barrier, uint16_t blocks, int c0, int c1,
                            int c2, int c3, int c4) {
  if constexpr (kMany) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "h"(blocks)
        : "memory");
  } else {
    copy_box(to, map, barrier, c0, c1, c2, c3, c4);
  }
}

// Where a box of 64-byte rows, in the swizzle of that width, has 16-byte piece `piece` of a row, from its start.
TENDON_DEVICE int swizzled_64(int row, int piece) { return row * 64 + ((piece ^ (row >> 1 & 3)) << 4); }

// Ordinary writes to shared memory are visible to copies and wgmma that start later, behind a barrier of their threads.
TENDON_DEVICE void shared_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// From shared memory to a box of a tensor. One thread stores; it waits until shared memory has been
// read.
TENDON_DEVICE void store_box(const CUtensorMap* map, uint32_t from, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
               "r"(c0), "r"(c1)
               : "memory");
}
TENDON_DEVICE void store_box(const CUtensorMap* map, uint32_t from, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
TENDON_DEVICE void stored_boxes_wait() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// The same for tensors of five dimensions.
TENDON_DEVICE void store_box(const CUtensorMap* map, uint32_t from, int c0, int c1, int c2, int c3, int c4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
               "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
               : "memory");
}

// Four values of 32 bits into the shared memory of another block, counted at its barrier like a copy.
template <class Word>
TENDON_DEVICE void send_four(uint32_t peer, uint32_t peer_barrier, const Word* y) {
  static_assert(sizeof(Word) == 4);
  const auto bits = [](Word word) { return __builtin_bit_cast(uint32_t, word); };
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(peer),
               "r"(bits(y[0])), "r"(bits(y[1])), "r"(bits(y[2])), "r"(bits(y[3])), "r"(peer_barrier)
               : "memory");
}

// Eight numbers of global memory, 16-byte aligned, that no kernel writes while this one runs.
TENDON_DEVICE void load_eight(const float* from, float (&y)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    const float4 four = load_constant_4(from + i);
    y[i] = four.x, y[i + 1] = four.y, y[i + 2] = four.z, y[i + 3] = four.w;
  }
}

// --- warpgroups ------------------------------------------------------------------------------------------------------

// 128 threads at the barrier `id`, 1 to 15.
TENDON_DEVICE void warpgroup_sync(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }

// One, two (one beside the other in registers, as wgmma leaves sums) or four 8×8 matrices of 16-bit words, stored
// transposed: lane l gives the address of row l % 8 of matrix l / 8.
TENDON_DEVICE void store_transposed(uint32_t to, uint32_t a) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(to), "r"(a) : "memory");
}
TENDON_DEVICE void store_transposed(uint32_t to, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a), "r"(b) : "memory");
}
TENDON_DEVICE void store_transposed(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// The other way.
TENDON_DEVICE void load_transposed(uint32_t from, uint32_t (&y)[2]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(y[0]), "=r"(y[1])
               : "r"(from)
               : "memory");
}
TENDON_DEVICE void load_transposed(uint32_t from, uint32_t (&y)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3])
               : "r"(from)
               : "memory");
}

TENDON_DEVICE Octet load_octet(uint32_t from) {
  Octet v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.pair[0]), "=r"(v.pair[1]), "=r"(v.pair[2]), "=r"(v.pair[3])
               : "r"(from)
               : "memory");
  return v;
}
TENDON_DEVICE void store_shared(uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
TENDON_DEVICE void load_two(uint32_t from, float (&y)[2]) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(y[0]), "=f"(y[1]) : "r"(from) : "memory");
}
TENDON_DEVICE void store_four(uint32_t to, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
TENDON_DEVICE void load_four(uint32_t from, int32_t (&y)[4]) {
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(y[0]), "=r"(y[1]), "=r"(y[2]), "=r"(y[3])
               : "r"(from)
               : "memory");
}
TENDON_DEVICE void load_four(uint32_t from, float (&y)[4]) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(y[0]), "=f"(y[1]), "=f"(y[2]), "=f"(y[3])
               : "r"(from)
               : "memory");
}

}  // namespace tendon::gpu::hopper
