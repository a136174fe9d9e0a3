// The matrix unit of waves of 64 lanes against plain arithmetic, element by element as mfma.cuh lays it out.
#include <cmath>

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
  mfma(sums, load_octet(a + lane() % 16 * 32 + depth), load_octet(b + col * 32 + depth));
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
  mfma(sums, load_octet(a + col * 16 + depth), load_octet(b + col * 16 + depth));
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

// d (R, R) += a (R, 2048 / R) · b (R, 2048 / R)ᵀ of codes, a lane's in two blocks of sixteen.
template <class Code, class Sum, int kRows>
TENDON_KERNEL void code_product_kernel(const Code* a, const Code* b, Sum* d) {
  constexpr int kDepth = 2048 / kRows;
  const int row = lane() % kRows;
  const auto codes = [&](const Code* rows) {
    const Code* const at = rows + row * kDepth + lane() / kRows * 16;
    return Codes{{load_octet(at), load_octet(at + kDepth / 2)}};
  };
  const auto at = [&](int i) { return (i / 4 * 256 / kRows + lane() / kRows * 4 + i % 4) * kRows + row; };
  Sum sums[kRows * kRows / 64];
  for (int i = 0; i < kRows * kRows / 64; ++i) sums[i] = d[at(i)];
  mfma(sums, codes(a), codes(b));
  for (int i = 0; i < kRows * kRows / 64; ++i) d[at(i)] = sums[i];
}

struct CodeOperands {
  static constexpr int kCodes = 2048;
  alignas(16) uint8_t a[kCodes];
  alignas(16) uint8_t b[kCodes];
};

class MfmaOfCodes : public Mfma {
 protected:
  // What the kernel makes of them has to be what plain arithmetic makes of value(code); both begin with row - column.
  template <class Code, class Sum, int kRows, class F>
  void is_product(const CodeOperands& o, const F& value) {
    constexpr int kDepth = CodeOperands::kCodes / kRows;
    std::vector<Sum> d(kRows * kRows), expected(kRows * kRows);
    for (int m = 0; m < kRows; ++m) {
      for (int n = 0; n < kRows; ++n) {
        const auto at = static_cast<size_t>(m * kRows + n);
        expected[at] = d[at] = static_cast<Sum>(m - n);
        for (int k = 0; k < kDepth; ++k) expected[at] += value(o.a[m * kDepth + k]) * value(o.b[n * kDepth + k]);
      }
    }
    const auto* const left = reinterpret_cast<const Code*>(o.a);
    const auto* const right = reinterpret_cast<const Code*>(o.b);
    launch<code_product_kernel<Code, Sum, kRows>>({.grid = 1, .block = 64, .stream = stream()}, left, right, d.data());
    wait();
    EXPECT_EQ(d, expected);
  }
};

TEST_P(MfmaOfCodes, MultipliesI8) {
  CodeOperands o;
  for (int i = 0; i < CodeOperands::kCodes; ++i) {
    o.a[i] = static_cast<uint8_t>(i * 37 % 255 - 127);
    o.b[i] = static_cast<uint8_t>(i * 53 % 255 - 127);
  }
  const auto value = [](uint8_t code) { return static_cast<int>(static_cast<int8_t>(code)); };
  is_product<int8_t, int, 16>(o, value);
  is_product<int8_t, int, 32>(o, value);
}

// On both kinds of units: where they read FNUZ, a product is a quarter of that of the codes.
TEST_P(MfmaOfCodes, MultipliesE4m3) {
  CodeOperands o;
  for (int i = 0; i < CodeOperands::kCodes; ++i) {
    o.a[i] = to_e4m3(static_cast<float>(i * 37 % 19 - 9)).bits;
    o.b[i] = to_e4m3(static_cast<float>(i * 53 % 23 - 11)).bits;
  }
  for (const bool fnuz : {true, false}) {
    simt::reads_fnuz = fnuz;
    EXPECT_EQ(mfma_scale<E4m3>(3.0F), fnuz ? 12.0F : 3.0F);
    const auto value = [&](uint8_t code) { return to_float(E4m3{code}) / (fnuz ? 2.0F : 1.0F); };
    is_product<E4m3, float, 16>(o, value);
    is_product<E4m3, float, 32>(o, value);
  }
  simt::reads_fnuz = true;
}

TEST(MfmaScale, ThatIsNotFiniteIsNaN) {
  EXPECT_TRUE(std::isnan(mfma_scale<E4m3>(INFINITY)) && std::isnan(mfma_scale<E4m3>(NAN)));
  EXPECT_EQ(mfma_scale<int8_t>(INFINITY), INFINITY);
}

TEST(Fnuz, IsHalfOfTheSameCodeElsewhere) {
  for (int code = 0; code < 256; ++code) {
    const E4m3 ocp{static_cast<uint8_t>(code)};
    if (code == 0x80) {
      EXPECT_TRUE(std::isnan(simt::fnuz_value(ocp.bits)));
    } else if ((code & 0x7f) == 0x7f) {
      EXPECT_EQ(simt::fnuz_value(ocp.bits), code == 0x7f ? 240.0F : -240.0F);
    } else {
      EXPECT_EQ(2 * simt::fnuz_value(ocp.bits), to_float(ocp)) << code;
    }
  }
}

TENDON_KERNEL void half_a_wave_kernel(float* out) {
  float sums[4] = {};
  if (lane() < 32) mfma(sums, Octet{}, Octet{});
  out[threadIdx.x] = sums[0];
}

TEST_P(Mfma, NeedsTheWholeWave) {
  std::vector<float> out(64);
  EXPECT_THAT(failure<half_a_wave_kernel>({.grid = 1, .block = 64}, out.data()), HasSubstr("mfma"));
}

TENDON_ALL_ORDERS(Mfma);
TENDON_ALL_ORDERS(MfmaOfCodes);

}  // namespace
}  // namespace tendon::test
