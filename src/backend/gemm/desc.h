// A matrix product as a key: two products with the same description run equally fast on one card.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"

namespace tendon::gemm {

// out (M, N) = epilogue(x (M, K) · w (N, K)ᵀ).
struct Desc {
  int64_t m = 0, n = 0, k = 0;
  DType x = DType::kBf16, w = DType::kBf16, out = DType::kBf16;
  // "none", or in this order and joined by '+': bias, gelu or silu, table, residual or gated; or alone "gelu_mul",
  // which reads two weight blocks of N rows, or "rope", which rotates and sends its columns to q and the cache.
  std::string epilogue = "none";

  bool operator==(const Desc&) const = default;
  bool same_but_rows(const Desc& other) const;
};

// "788x2560x2048 bf16 bf16 bf16 none": M, N, K, the types of x, w and out, the epilogue.
std::string to_string(const Desc& desc);

bool known_epilogue(const std::string& text);
// The same product where another kernel rotates its results.
Desc without_rope(Desc desc);

// Multiplications and additions.
double flops(const Desc& desc);

}  // namespace tendon::gemm
