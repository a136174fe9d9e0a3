// What Hopper (sm_90a) adds to the device prelude, as thin names over PTX: barriers in shared memory that count bytes,
// bulk copies, stores to the neighbour block of a cluster, and accesses that go past the first-level cache. Shared
// memory is addressed by its 32-bit address (shared_address).
#pragma once

#include <cstdint>

#include "backend/gpu/device/cluster.cuh"
#include "backend/gpu/device/mma.cuh"
#include "backend/gpu/device/prelude.cuh"

namespace tendon::gpu::hopper {

// --- barriers: a phase ends when `arrivals` have come and all expected bytes have landed ---------------------------

TENDON_DEVICE void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers known to the copy engine and to the other blocks of the cluster.
TENDON_DEVICE void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Arrives once and expects so many bytes more in this phase.
TENDON_DEVICE void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
TENDON_DEVICE void barrier_arrive(uint32_t barrier, uint32_t count = 1) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Until the phase of this parity has ended.
TENDON_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred ended;\nwaiting:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n@!ended bra waiting;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Reading until another block has written is a fault of ours when it never ends: after some seconds the kernel stops
// with an error instead of hanging.
struct Patience {
#ifdef TENDON_LOOP_BARRIERS  // what a stage reads is there when it begins
  static constexpr uint32_t kMost = 8;
#else
  static constexpr uint32_t kMost = 40'000'000;
#endif
  uint32_t tries = 0;
  TENDON_DEVICE void lose() {
    if (++tries > kMost) asm volatile("trap;");
  }
};

// Barrier `id` of the block for the first `threads` threads that use it. Whole warps arrive: lanes that left a loop one
// by one come together first.
TENDON_DEVICE void named_barrier(int id, int threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Registers of a thread from here on; of all four warps of a warpgroup. Those that one gives another can take.
template <int kRegisters>
TENDON_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
TENDON_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- clusters -----------------------------------------------------------------------------------------------------

// The address of the same shared variable in block `rank` of the cluster.
TENDON_DEVICE uint32_t in_block(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
// Stores to another block's shared memory; its barrier there counts the four bytes.
TENDON_DEVICE void send(uint32_t address, float value, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(address), "f"(value),
               "r"(barrier)
               : "memory");
}

// --- bulk copies from global to shared memory ---------------------------------------------------------------------

TENDON_DEVICE uint64_t policy_evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
TENDON_DEVICE uint64_t policy_evict_last() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// 16-byte aligned, a multiple of 16 bytes; the barrier counts them.
TENDON_DEVICE void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// --- shared memory by address -------------------------------------------------------------------------------------

TENDON_DEVICE uint4 load_shared_16(uint32_t a) { return *static_cast<const uint4*>(__cvta_shared_to_generic(a)); }
TENDON_DEVICE uint2 load_shared_8(uint32_t a) { return *static_cast<const uint2*>(__cvta_shared_to_generic(a)); }
TENDON_DEVICE float load_shared_float(uint32_t a) { return *static_cast<const float*>(__cvta_shared_to_generic(a)); }
TENDON_DEVICE void store_shared_floats(uint32_t a, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(a), "f"(x), "f"(y) : "memory");
}
TENDON_DEVICE void store_shared_float(uint32_t a, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(a), "f"(v) : "memory");
}
TENDON_DEVICE void store_shared_bf16(uint32_t a, float v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(a), "h"(narrow<Bf16>(v).bits) : "memory");
}

// --- global memory that nobody writes while the kernel runs; loaded here and now, not where the number is used

TENDON_DEVICE float load_constant(const float* p) {
  float v;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
TENDON_DEVICE int load_constant(const int* p) {
  int v;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
TENDON_DEVICE float4 load_constant_4(const float* p) {
  float4 v;
  asm volatile("ld.global.nc.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}

// --- global memory that other blocks write while this one runs ------------------------------------------------------

TENDON_DEVICE uint4 load_relaxed_16(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
TENDON_DEVICE uint2 load_relaxed_8(const void* p) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
  return v;
}
TENDON_DEVICE uint32_t load_relaxed_4(const void* p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
TENDON_DEVICE void store_relaxed_4(void* p, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
TENDON_DEVICE void store_relaxed_8(void* p, uint32_t x, uint32_t y) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(x), "r"(y) : "memory");
}
TENDON_DEVICE void store_relaxed_16(void* p, uint4 v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// --- tensor cores -------------------------------------------------------------------------------------------------

// sums (16×8) += a (16×16) · b (16×8), registers as mma.m16n8k16 lays them out.
TENDON_DEVICE void mma(float (&sums)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
// sums (16×8) += a (16×8) · b (8×8) in tf32, which takes the upper 19 bits of an f32. As (row, k) a lane has in a
// (group, quad), (group + 8, quad), (group, quad + 4), (group + 8, quad + 4), as (k, column) in b (quad, group), (quad
// + 4, group).
TENDON_DEVICE void mma_tf32(float (&sums)[4], const float (&a)[4], const float (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
// 2ˣ; 0 where it is subnormal.
TENDON_DEVICE float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Two bf16 products, rounded.
TENDON_DEVICE uint32_t multiply_bf16_pair(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

}  // namespace tendon::gpu::hopper
