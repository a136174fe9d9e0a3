// Tensor-core tiles of one wave, and what feeds them: matrix loads from shared memory and asynchronous 16-byte copies
// into it. NVIDIA since Ampere.
#pragma once

#include "backend/gpu/device/prelude.cuh"

#ifdef TENDON_SIMT
#include "backend/sim/mma_words.h"
#endif

namespace tendon::gpu {

static_assert(kWarpSize == 32);

#ifdef TENDON_SIMT

// The same signatures for the shim, which models them lane by lane; explanations stand at the instructions below.
inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], TENDON_HERE) {
  simt::mma_16x8x16(d, a, b, here);
}
inline void load_matrices(uint32_t (&r)[4], const Bf16* p, TENDON_HERE) { simt::load_8x8<4, false>(r, p, here); }
inline void load_matrices_transposed(uint32_t (&r)[4], const Bf16* p, TENDON_HERE) {
  simt::load_8x8<4, true>(r, p, here);
}
inline void copy_async(Bf16* to, const Bf16* from, bool valid, TENDON_HERE) {
  simt::copy_async(to, from, 16, valid ? 16 : 0, here);
}
inline void copy_commit() { simt::copy_commit(); }
template <int kPending>
void copy_wait() {
  simt::copy_wait(kPending);
}

#else

// d (16, 8) += a (16, 16) · b (16, 8). Lane l holds rows l / 4 and l / 4 + 8 of d and a, columns 2·(l mod 4) + {0, 1}
// (a: also + 8); of b column l / 4, rows 2·(l mod 4) + {0, 1} and + 8.
TENDON_DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
TENDON_DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
// Four 8×8 matrices; lane l gives the address of row l mod 8 of matrix l / 8.
TENDON_DEVICE void load_matrices(uint32_t (&r)[4], const Bf16* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}
TENDON_DEVICE void load_matrices_transposed(uint32_t (&r)[4], const Bf16* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}
// 16 bytes, or zeros where not valid.
TENDON_DEVICE void copy_async(Bf16* to, const Bf16* from, bool valid) {
  const int bytes = valid ? 16 : 0;  // the rest is filled with zeros
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
TENDON_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;"); }
template <int kPending>
TENDON_DEVICE void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending));
}

#endif

}  // namespace tendon::gpu
