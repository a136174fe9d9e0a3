// The matrix unit of waves of 64 lanes against plain arithmetic, element by element as mfma.cuh lays it out.
#include "backend/gpu/device/mfma.cuh"
#include "fixture.h"

namespace tendon::test {
namespace {

using namespace tendon::gpu;
using testing::HasSubstr;

class Mfma : public Simt {};

// d (16, 16) += a (16, 32) · b (16, 32)ᵀ.
TENDON_KERNEL void product_kernel(const Bf16* a, const Bf16* b, float* d) {
  const int depth = lane() / 16 * 8;
  const int row = lane() / 16 * 4;
  const int col = lane() % 16;
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = d[(row + i) * 16 + col];
  mfma_bf16(sums, load_octet(a + lane() % 16 * 32 + depth), load_octet(b + col * 32 + depth));
  for (int i = 0; i < 4; ++i) d[(row + i) * 16 + col] = sums[i];
}

TEST_P(Mfma, IsAProduct) {
  // Small integers: every sum is exact, so the order of summation does not matter.
  alignas(16) Bf16 a[16 * 32];
  alignas(16) Bf16 b[16 * 32];
  for (int i = 0; i < 16 * 32; ++i) {
    a[i] = to_bf16(static_cast<float>(i * 37 % 19 - 9));
    b[i] = to_bf16(static_cast<float>(i * 53 % 23 - 11));
  }
  std::vector<float> d(256), expected(256);
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) {
      const auto at = static_cast<size_t>(m * 16 + n);
      expected[at] = d[at] = static_cast<float>(3 * (m - n));
      for (int k = 0; k < 32; ++k) expected[at] += to_float(a[m * 32 + k]) * to_float(b[n * 32 + k]);
    }
  }
  const Bf16* const left = a;
  const Bf16* const right = b;
  launch<product_kernel>({.grid = 1, .block = 64, .stream = stream()}, left, right, d.data());
  wait();
  EXPECT_EQ(d, expected);
}

// d (32, 32) += a (32, 16) · b (32, 16)ᵀ.
TENDON_KERNEL void wide_product_kernel(const Bf16* a, const Bf16* b, float* d) {
  const int depth = lane() / 32 * 8;
  const int col = lane() % 32;
  const auto at = [&](int i) { return (i / 4 * 8 + lane() / 32 * 4 + i % 4) * 32 + col; };
  float sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = d[at(i)];
  mfma_bf16(sums, load_octet(a + col * 16 + depth), load_octet(b + col * 16 + depth));
  for (int i = 0; i < 16; ++i) d[at(i)] = sums[i];
}

TEST_P(Mfma, IsAProductOf32Rows) {
  alignas(16) Bf16 a[32 * 16];
  alignas(16) Bf16 b[32 * 16];
  for (int i = 0; i < 32 * 16; ++i) {
    a[i] = to_bf16(static_cast<float>(i * 37 % 19 - 9));
    b[i] = to_bf16(static_cast<float>(i * 53 % 23 - 11));
  }
  std::vector<float> d(1024), expected(1024);
  for (int m = 0; m < 32; ++m) {
    for (int n = 0; n < 32; ++n) {
      const auto at = static_cast<size_t>(m * 32 + n);
      expected[at] = d[at] = static_cast<float>(3 * (m - n));
      for (int k = 0; k < 16; ++k) expected[at] += to_float(a[m * 16 + k]) * to_float(b[n * 16 + k]);
    }
  }
  const Bf16* const left = a;
  const Bf16* const right = b;
  launch<wide_product_kernel>({.grid = 1, .block = 64, .stream = stream()}, left, right, d.data());
  wait();
  EXPECT_EQ(d, expected);
}

TENDON_KERNEL void half_a_wave_kernel(float* out) {
  float sums[4] = {};
  if (lane() < 32) mfma_bf16(sums, Octet{}, Octet{});
  out[threadIdx.x] = sums[0];
}

TEST_P(Mfma, NeedsTheWholeWave) {
  std::vector<float> out(64);
  EXPECT_THAT(failure<half_a_wave_kernel>({.grid = 1, .block = 64}, out.data()), HasSubstr("mfma"));
}

TENDON_ALL_ORDERS(Mfma);

}  // namespace
}  // namespace tendon::test
