// The GPU's execution model on the CPU, for tests: the kernels' own source, compiled by the host's compiler with
// TENDON_SIMT, runs with one fiber a GPU thread. What CUDA leaves undefined is reported instead: a barrier that not all
// threads reach, a wave operation that lanes enter at different places, shared memory used out of range. What CUDA
// leaves open is made as unkind as it may be: shared memory starts as NaN, asynchronous copies land at the wait and not
// before, threads run in a chosen order and as far as they can before another gets its turn.
//
// Everything here is called from kernels, in the thread that launched them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>

#ifndef TENDON_WARP_SIZE
#define TENDON_WARP_SIZE 32
#endif

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1) : x(x_size), y(y_size), z(z_size) {}
};
struct uint3 {
  unsigned x, y, z;
};

// Of the GPU thread that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

namespace tendon::simt {

using Here = std::source_location;

constexpr int kWaveSize = TENDON_WARP_SIZE;
static_assert(kWaveSize == 32 || kWaveSize == 64);

// Which thread goes first where several could.
enum class Order { kForward, kReverse, kShuffled };

struct Shape {
  dim3 grid, block;
  size_t shared_bytes = 0;
  bool overlaps = false;
  unsigned cluster = 1;
};
struct Kernel {
  Shape shape;
  std::function<void()> body;  // what one thread runs
};

// Runs a kernel to its end. Throws Error(kDevice) with block, thread and source line for what a card leaves undefined.
// `producer`: the kernel in front, which has not run yet; it runs when the first thread waits for producers. A kernel
// that says it overlaps and never waits is an error.
void run(const Kernel& kernel, Order order, uint64_t seed, const Kernel* producer = nullptr);

// --- for kernels ----------------------------------------------------------------------------------------------------

// All lanes of a wave come here, with the same name and from the same place. The last one calls combine(lanes), where
// lanes[i] is what lane i gave as `mine`; then all go on.
void wave_collective(const char* name, void* mine, void (*combine)(void* const* lanes), const Here& at);
void block_barrier(const Here& at);

void cluster_arrive();
void cluster_wait(const Here& at);
unsigned cluster_rank();
// The same address in the shared memory of another block of the cluster.
void* peer_shared(void* mine, unsigned rank);

void* dynamic_shared();
// The block's static array of this name in this file and line.
void* static_shared(const char* name, size_t bytes, const Here& at = Here::current());
// Fails unless [p, p + bytes) is shared memory of this block and p a multiple of `alignment`.
void check_shared(const void* p, size_t bytes, size_t alignment, const char* what, const Here& at);

// Copies into shared memory that land when this thread waits for their group. Until then the target holds NaNs.
void copy_async(void* to, const void* from, unsigned bytes, unsigned valid_bytes, const Here& at);
void copy_commit();
void copy_wait(unsigned pending_groups);

void wait_for_producers();

}  // namespace tendon::simt
