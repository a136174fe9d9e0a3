// Blocks that run together and reach each other's shared memory. NVIDIA since Hopper.
#pragma once

#include "backend/gpu/device/prelude.cuh"

namespace tendon::gpu {

#ifdef TENDON_SIMT

inline int cluster_rank() { return static_cast<int>(simt::cluster_rank()); }
template <class T>
T* peer_shared(T* p, int rank) {
  return static_cast<T*>(simt::peer_shared(p, static_cast<unsigned>(rank)));
}
inline void cluster_arrive() { simt::cluster_arrive(); }
inline void cluster_wait(TENDON_HERE) { simt::cluster_wait(here); }

#elif !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// Rank of this block in its cluster; clusters lie along x.
TENDON_DEVICE int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
// The same variable in the shared memory of another block of the cluster.
template <class T>
TENDON_DEVICE T* peer_shared(T* p, int rank) {
  uint64_t peer;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(peer) : "l"(p), "r"(rank));
  return reinterpret_cast<T*>(peer);
}
// What a thread wrote before it arrives is visible to every thread of the cluster after its wait.
TENDON_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
TENDON_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

#else  // never launched there: has_clusters()

TENDON_DEVICE int cluster_rank() { return 0; }
template <class T>
TENDON_DEVICE T* peer_shared(T* p, int) {
  return p;
}
TENDON_DEVICE void cluster_arrive() {}
TENDON_DEVICE void cluster_wait() {}

#endif

}  // namespace tendon::gpu
