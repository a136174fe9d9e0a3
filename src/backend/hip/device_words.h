// The words of device code that kernels use, for clang's HIP language: qualifiers, intrinsics, vector types. Nothing of
// ROCm is included, so that any clang that knows the cards compiles them (-nogpuinc -nogpulib).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define __align__(bytes) __attribute__((aligned(bytes)))

#define TENDON_DEVICE __device__ inline __attribute__((always_inline))
#define TENDON_KERNEL __global__
// name: the block's dynamic shared memory, unsigned char, 16-byte aligned.
#define TENDON_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
// T name[count], one for the block, 16-byte aligned.
#define TENDON_SHARED(T, name, count) __shared__ __align__(16) T name[count]

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_size = 1, unsigned y_size = 1, unsigned z_size = 1) : x(x_size), y(y_size), z(z_size) {}
};

// What clang's launch stubs refer to. Kernels are launched by launch() of gpu_rt.h, never by a stub.
using hipError_t = int;
using hipStream_t = struct ihipStream_t*;
extern "C" hipError_t hipLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** parameters, size_t shared_bytes,
                                      hipStream_t stream);

namespace tendon::hip {

// threadIdx.x and its like: read where they are used.
template <class Read>
struct Coordinate {
  __device__ operator unsigned() const { return Read::value(); }
};
#define TENDON_COORDINATE(name, expression)                                             \
  struct name {                                                                         \
    TENDON_DEVICE static unsigned value() { return static_cast<unsigned>(expression); } \
  }
TENDON_COORDINATE(ThreadX, __builtin_amdgcn_workitem_id_x());
TENDON_COORDINATE(ThreadY, __builtin_amdgcn_workitem_id_y());
TENDON_COORDINATE(ThreadZ, __builtin_amdgcn_workitem_id_z());
TENDON_COORDINATE(BlockX, __builtin_amdgcn_workgroup_id_x());
TENDON_COORDINATE(BlockY, __builtin_amdgcn_workgroup_id_y());
TENDON_COORDINATE(BlockZ, __builtin_amdgcn_workgroup_id_z());
TENDON_COORDINATE(SizeX, __builtin_amdgcn_workgroup_size_x());
TENDON_COORDINATE(SizeY, __builtin_amdgcn_workgroup_size_y());
TENDON_COORDINATE(SizeZ, __builtin_amdgcn_workgroup_size_z());
TENDON_COORDINATE(GridX, __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x());
TENDON_COORDINATE(GridY, __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y());
TENDON_COORDINATE(GridZ, __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z());
#undef TENDON_COORDINATE

template <class X, class Y, class Z>
struct Coordinates {
  Coordinate<X> x;
  Coordinate<Y> y;
  Coordinate<Z> z;
};

}  // namespace tendon::hip

inline constexpr tendon::hip::Coordinates<tendon::hip::ThreadX, tendon::hip::ThreadY, tendon::hip::ThreadZ> threadIdx{};
inline constexpr tendon::hip::Coordinates<tendon::hip::BlockX, tendon::hip::BlockY, tendon::hip::BlockZ> blockIdx{};
inline constexpr tendon::hip::Coordinates<tendon::hip::SizeX, tendon::hip::SizeY, tendon::hip::SizeZ> blockDim{};
inline constexpr tendon::hip::Coordinates<tendon::hip::GridX, tendon::hip::GridY, tendon::hip::GridZ> gridDim{};

// Functions of the C library that device code may call, beside the host's of the same names.
TENDON_DEVICE float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
TENDON_DEVICE float fabsf(float x) { return __builtin_fabsf(x); }
TENDON_DEVICE float sqrtf(float x) { return __builtin_sqrtf(x); }
TENDON_DEVICE float expf(float x) { return __builtin_expf(x); }

TENDON_DEVICE float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
TENDON_DEVICE unsigned __float_as_uint(float value) { return __builtin_bit_cast(unsigned, value); }
TENDON_DEVICE int __float_as_int(float value) { return __builtin_bit_cast(int, value); }
// Rounded on their own, never part of a fused multiply-add.
TENDON_DEVICE float __fadd_rn(float a, float b) {
#pragma clang fp contract(off)
  return a + b;
}
TENDON_DEVICE float __fmul_rn(float a, float b) {
#pragma clang fp contract(off)
  return a * b;
}
TENDON_DEVICE float __fsub_rn(float a, float b) {
#pragma clang fp contract(off)
  return a - b;
}
TENDON_DEVICE float __fdiv_rn(float a, float b) { return a / b; }
// The card's own exponential and reciprocal, about one unit in the last place.
TENDON_DEVICE float __expf(float x) { return __builtin_amdgcn_exp2f(x * 1.44269504088896340736F); }
TENDON_DEVICE double __dadd_rn(double a, double b) {
#pragma clang fp contract(off)
  return a + b;
}
TENDON_DEVICE double __dmul_rn(double a, double b) {
#pragma clang fp contract(off)
  return a * b;
}
TENDON_DEVICE float __fdividef(float a, float b) { return a * __builtin_amdgcn_rcpf(b); }

TENDON_DEVICE int atomicMax(int* p, int value) {
  return __hip_atomic_fetch_max(p, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

TENDON_DEVICE void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
// The lanes of a wave run together; what they wrote to shared memory must be there before the next reads.
TENDON_DEVICE void __syncwarp() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
TENDON_DEVICE float __shfl_xor(float value, int mask) {
  const int lane = static_cast<int>(threadIdx.x) & 63;
  return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute((lane ^ mask) * 4, __builtin_bit_cast(int, value)));
}
