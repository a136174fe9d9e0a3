// What the attention kernels on wgmma share. A thread has rows lane / 4 and lane / 4 + 8 of its warp's sixteen; of tile
// columns 8g + 2 · (lane % 4) + {0, 1} of every g, as wgmma leaves sums: value 4g + 2h + i.
#pragma once

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/hopper/copies.cuh"
#include "backend/cuda/hopper/wgmma.cuh"
#include "backend/gpu/codes.cuh"

namespace tendon::gpu::attention {

using namespace hopper;

constexpr int kWideBytes = kTileRows * kWideCols * 2;  // of a box
constexpr int kRestBytes = kTileRows * kRestCols * 2;

TENDON_DEVICE float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Over the four threads that have a row.
TENDON_DEVICE float row_max(float x) {
  x = fmaxf(x, shuffle_xor(x, 1));
  return fmaxf(x, shuffle_xor(x, 2));
}
TENDON_DEVICE float row_sum(float x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}

// The largest of 64 logits of row lane / 4 + 8h, among this thread's.
TENDON_DEVICE float largest(const float* logits, int h) {
  float most = -INFINITY;
#pragma unroll
  for (int g = 0; g < 8; ++g) most = fmaxf(most, fmaxf(logits[4 * g + 2 * h], logits[4 * g + 2 * h + 1]));
  return most;
}

// exp2(scale · logit - shift[row]) of 64 logits, as the first operand of four steps, and their sums. A logit of -∞
// gives 0.
TENDON_DEVICE void exponentials(const float* logits, float scale, const float (&shift)[2], uint32_t (&p)[4][4],
                                float (&sums)[2]) {
#pragma unroll
  for (int g = 0; g < 8; ++g) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float x = power_of_two(fmaf(logits[4 * g + 2 * h], scale, -shift[h]));
      const float y = power_of_two(fmaf(logits[4 * g + 2 * h + 1], scale, -shift[h]));
      sums[h] += x + y;
      p[g / 2][g % 2 * 2 + h] = pack_bf16(x, y);
    }
  }
}

// Where a box of 64 columns has 16-byte piece `piece` of a row, from its start.
TENDON_DEVICE int swizzled(int row, int piece) { return row * 128 + ((piece ^ row & 7) << 4); }

// Two numbers of column 8 · piece + 2 · (lane % 4), where a box with swizzle has them; `row` of the box.
TENDON_DEVICE void stage_pair(uint32_t box, int row, int piece, float x, float y) {
  const uint32_t at = box + swizzled(row, piece) + lane() % 4 * 4;
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(pack_bf16(x, y)) : "memory");
}
TENDON_DEVICE void stage_rest_pair(uint32_t box, int row, int piece, float x, float y) {
  const uint32_t at = box + row * 32 + ((piece ^ row >> 2 & 1) << 4) + lane() % 4 * 4;
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(pack_bf16(x, y)) : "memory");
}

// --- results as codes ------------------------------------------------------------------------------------------------

template <class Result>
constexpr bool kIsCodes = sizeof(Result) == 1;

// Codes of two numbers in neighbouring columns, rounded to bf16 before; `factors` are theirs.
template <class Code>
TENDON_DEVICE uint32_t codes_of_pair(float x, float y, const float (&factors)[2]) {
  return pack_codes(Code{}, rounded<Bf16>(x) * factors[0], rounded<Bf16>(y) * factors[1]);
}
TENDON_DEVICE void stage_codes(uint32_t at, uint32_t two) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(static_cast<uint16_t>(two)) : "memory");
}
// Scales 1 for `count` tokens of sample b, a thread each.
TENDON_DEVICE void write_unit_scales(const Args& a, int b, int first_token, int thread, int count) {
  if (thread < count && first_token + thread < a.queries) {
    a.code_scales[static_cast<int64_t>(b) * a.queries + first_token + thread] = 1.0F;
  }
}

// For every type of result.
template <class F>
void with_result(DType result, const F& f) {
  if (result == DType::kI8) {
    f(int8_t{});
  } else if (result == DType::kE4m3) {
    f(E4m3{});
  } else {
    f(Bf16{});
  }
}

}  // namespace tendon::gpu::attention
