// Values by a rule (base/value_rule.h): out[i] = bf16(f32(offset + scale·r)), r = (splitmix64(seed + i) >> 40)·2⁻²³
// - 1.
//
//   out  any shape, contiguous, 16-byte aligned, bf16 or f32 (the bf16 value widened)
//
// f64 product and sum, each rounded (no fused multiply-add), so that the bits are those of the host. A thread writes 16
// bytes. Bytes moved: the output once.
#include "backend/gpu/device/prelude.cuh"
#include "backend/gpu/kernels.h"
#include "base/value_rule.h"

namespace tendon::gpu {
namespace {

TENDON_DEVICE Bf16 value_at(const ValueRule& rule, uint64_t i) {
  uint64_t h = rule.seed + i + 0x9e3779b97f4a7c15ULL;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ULL;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebULL;
  h ^= h >> 31;
  const double r = static_cast<double>(static_cast<int>(h >> 40)) * kValueRuleUnit - 1.0;  // exact, fused or not
  const auto value = static_cast<float>(__dadd_rn(rule.offset, __dmul_rn(rule.scale, r)));
  return narrow<Bf16>(value);
}

template <class T>
TENDON_KERNEL void value_rule_kernel(T* out, int64_t count, ValueRule rule) {
  constexpr int64_t kSize = Vec<T>::kSize;
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kSize;
  if (first + kSize <= count) {
    Vec<T> values;
#pragma unroll
    for (int i = 0; i < kSize; ++i) values.v[i] = narrow<T>(widen(value_at(rule, static_cast<uint64_t>(first + i))));
    store_vec(out + first, values);
  } else {
    for (int64_t i = first; i < count; ++i) out[i] = narrow<T>(widen(value_at(rule, static_cast<uint64_t>(i))));
  }
}

}  // namespace

// --------------------------------------------------------------------------------------------------------------------

void launch_value_rule(const Tensor& out, const ValueRule& rule, Stream stream) {
  constexpr int kThreads = 256;
  const int64_t count = out.elements();
  if (count == 0) return;
  with_float_type(out.dtype, [&]<class T>(T) {
    const auto blocks = static_cast<unsigned>(ceil_div(ceil_div(count, Vec<T>::kSize), kThreads));
    launch<value_rule_kernel<T>>({.grid = blocks, .block = kThreads, .stream = stream}, out.as<T>(), count, rule);
  });
}

}  // namespace tendon::gpu
