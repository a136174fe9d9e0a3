// x · wᵀ for a handful of rows of x, where the time is that of reading the weights once.
#pragma once

#include <cstdint>

#include "base/tensor.h"

namespace tendon {

// Up to here the kernel is clearly ahead of oneDNN; at 50 rows it is equal for bf16 weights and 0.75 of it for f32
// ones.
constexpr int64_t kFewRows = 20;

// True when this CPU has the instructions (AVX-512 F and BW); else few rows go through oneDNN like many.
bool few_rows_available();

// Floats of one packed row of k numbers.
constexpr int64_t few_rows_stride(int64_t k) { return (k + 31) / 32 * 32; }

// Rows begin..end of x (M, K) f32 or bf16 to `packed` (M, few_rows_stride(K)): widened, each 32 numbers as 16 even
// ones, then 16 odd ones, zeros beyond K.
void few_rows_pack(const Tensor& x, int64_t begin, int64_t end, float* packed);

// sums[m · sums_stride + n] = Σ_k x[m, k] · w[first + n, k] for n < count; w f32 or bf16, with the same result for
// equal numbers.
void few_rows_product(const float* packed, int64_t m, const Tensor& w, int64_t first, int64_t count, float* sums,
                      int64_t sums_stride);

}  // namespace tendon
