// Tensor-core tiles, matrix loads and asynchronous copies of the shim against plain arithmetic.
#include "backend/gpu/device/mma.cuh"
#include "fixture.h"

namespace tendon::test {
namespace {

using namespace tendon::gpu;
using testing::HasSubstr;

class Tiles : public Simt {};

// d (16, 8) = c + a (16, 16) · b (8, 16)ᵀ, loaded element by element as the tile's comment lays it out.
TENDON_KERNEL void product_kernel(const Bf16* a, const Bf16* b, float* d) {
  const int row = lane() / 4;
  const int col = lane() % 4 * 2;
  const auto pair = [](const Bf16* p) { return p[0].bits | static_cast<uint32_t>(p[1].bits) << 16; };
  const uint32_t left[4] = {pair(a + row * 16 + col), pair(a + (row + 8) * 16 + col), pair(a + row * 16 + col + 8),
                            pair(a + (row + 8) * 16 + col + 8)};
  const uint32_t right[2] = {pair(b + row * 16 + col), pair(b + row * 16 + col + 8)};
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = d[(row + i / 2 * 8) * 8 + col + i % 2];
  mma_bf16(sums, left, right);
  for (int i = 0; i < 4; ++i) d[(row + i / 2 * 8) * 8 + col + i % 2] = sums[i];
}

// The same from shared memory: a by rows, b by rows (b_rows) or as (16, 8) loaded transposed.
template <bool kTransposed>
TENDON_KERNEL void loaded_product_kernel(const Bf16* a, const Bf16* b, float* d) {
  constexpr int kPitch = 24;
  TENDON_SHARED(Bf16, a_tile, 16 * kPitch);
  TENDON_SHARED(Bf16, b_tile, 16 * kPitch);
  for (int i = lane(); i < 16 * 16; i += kWarpSize) {
    const int row = i / 16;
    const int col = i % 16;
    a_tile[row * kPitch + col] = a[i];
    if (row < 8) b_tile[kTransposed ? col * kPitch + row : row * kPitch + col] = b[i];
  }
  for (int i = lane(); i < 16 * 8; i += kWarpSize) {  // what the last two matrices read
    const int row = i / 8;
    b_tile[kTransposed ? row * kPitch + 8 + i % 8 : (8 + i % 8) * kPitch + row] = Bf16{};
  }
  wave_sync();
  uint32_t left[4], right[4];
  load_matrices(left, a_tile + lane() % 16 * kPitch + lane() / 16 * 8);
  if (kTransposed) {
    load_matrices_transposed(right, b_tile + lane() % 16 * kPitch + lane() / 16 * 8);
  } else {
    load_matrices(right, b_tile + (lane() % 8 + lane() / 16 * 8) * kPitch + lane() / 8 % 2 * 8);
  }
  float sums[4] = {};
  mma_bf16(sums, left, {right[0], right[1]});
  for (int i = 0; i < 4; ++i) d[(lane() / 4 + i / 2 * 8) * 8 + lane() % 4 * 2 + i % 2] = sums[i];
}

struct Matrices {
  std::vector<Bf16> a = std::vector<Bf16>(256), b = std::vector<Bf16>(128);
  std::vector<float> d = std::vector<float>(128), expected = std::vector<float>(128);
  explicit Matrices(float start) {
    // Small integers: every sum is exact, so the order of summation does not matter.
    for (int i = 0; i < 256; ++i) a[static_cast<size_t>(i)] = to_bf16(static_cast<float>(i * 37 % 19 - 9));
    for (int i = 0; i < 128; ++i) b[static_cast<size_t>(i)] = to_bf16(static_cast<float>(i * 53 % 23 - 11));
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 8; ++n) {
        const auto at = static_cast<size_t>(m * 8 + n);
        expected[at] = d[at] = start * static_cast<float>(m - n);
        for (int k = 0; k < 16; ++k)
          expected[at] += to_float(a[static_cast<size_t>(m * 16 + k)]) * to_float(b[static_cast<size_t>(n * 16 + k)]);
      }
    }
  }
};

TEST_P(Tiles, AProductOfElementsLoadedOneByOne) {
  Matrices m(3);
  launch<product_kernel>({.grid = 1, .block = 32, .stream = stream()}, m.a.data(), m.b.data(), m.d.data());
  wait();
  EXPECT_EQ(m.d, m.expected);
}

TEST_P(Tiles, AProductOfLoadedMatrices) {
  Matrices m(0);
  launch<loaded_product_kernel<false>>({.grid = 1, .block = 32, .stream = stream()}, m.a.data(), m.b.data(),
                                       m.d.data());
  wait();
  EXPECT_EQ(m.d, m.expected);
  m.d.assign(128, 0);
  launch<loaded_product_kernel<true>>({.grid = 1, .block = 32, .stream = stream()}, m.a.data(), m.b.data(), m.d.data());
  wait();
  EXPECT_EQ(m.d, m.expected);
}

TENDON_KERNEL void half_a_tile_kernel(float* out) {
  float sums[4] = {};
  const uint32_t a[4] = {};
  if (lane() % 2 == 0) mma_bf16(sums, a, {0, 0});
  out[threadIdx.x] = sums[0];
}
TENDON_KERNEL void load_outside_kernel(int offset) {
  TENDON_SHARED(Bf16, tile, 64);
  uint32_t r[4];
  load_matrices(r, tile + lane() % 8 * 8 + offset);
}

TEST_P(Tiles, MisuseIsAnError) {
  std::vector<float> out(32);
  EXPECT_THAT(failure<half_a_tile_kernel>({.grid = 1, .block = 32}, out.data()), HasSubstr("mma"));
  EXPECT_EQ(failure<load_outside_kernel>({.grid = 1, .block = 32}, 0), "");
  EXPECT_THAT(failure<load_outside_kernel>({.grid = 1, .block = 32}, 8), HasSubstr("outside"));
  EXPECT_THAT(failure<load_outside_kernel>({.grid = 1, .block = 32}, -8), HasSubstr("outside"));
  EXPECT_THAT(failure<load_outside_kernel>({.grid = 1, .block = 32}, 1), HasSubstr("aligned"));
}

// Three stages of eight values a thread; each is read after the wait that is due, or one stage too early.
template <int kPending, bool kBarrier>
TENDON_KERNEL void stages_kernel(const Bf16* from, float* out) {
  TENDON_SHARED(Bf16, slots, 3 * 32 * 8);
  for (int stage = 0; stage < 3; ++stage) {
    copy_async(slots + (stage * 32 + lane()) * 8, from + (stage * 32 + lane()) * 8, true);
    copy_commit();
  }
  copy_wait<kPending>();
  if (kBarrier) wave_sync();
  const int other = (lane() + 1) % 32;
  for (int stage = 0; stage < 3; ++stage) out[lane() * 3 + stage] = widen(slots[(stage * 32 + other) * 8]);
}

#ifdef __SANITIZE_ADDRESS__
// A read of a slot that nobody waited for stops the program there.
#define TENDON_EXPECT_NANS(statement) EXPECT_DEATH(statement, "use-after-poison")
#else
#define TENDON_EXPECT_NANS(statement) EXPECT_GT(statement, 0)
#endif

TEST_P(Tiles, CopiesLandAtTheWaitForTheirGroup) {
  std::vector<Bf16> from(3 * 32 * 8);
  for (size_t i = 0; i < from.size(); ++i) from[i] = to_bf16(static_cast<float>(i / 8));
  std::vector<float> out(96);
  const auto nans = [&]<int kPending, bool kBarrier>() {
    out.assign(96, 0);
    launch<stages_kernel<kPending, kBarrier>>({.grid = 1, .block = 32, .stream = stream()}, from.data(), out.data());
    wait();
    return count_nan(out);
  };
  EXPECT_EQ((nans.operator()<0, true>()), 0);
  for (int l = 0; l < 32; ++l) {
    for (int stage = 0; stage < 3; ++stage)
      EXPECT_EQ(out[static_cast<size_t>(l * 3 + stage)], static_cast<float>(stage * 32 + (l + 1) % 32));
  }
  TENDON_EXPECT_NANS((nans.operator()<1, true>()));
  TENDON_EXPECT_NANS((nans.operator()<2, true>()));
  EXPECT_GT((nans.operator()<0, false>()), 0);  // not begun by the neighbour
#ifndef __SANITIZE_ADDRESS__
  EXPECT_EQ((nans.operator()<1, true>()), 32);  // exactly the last stage is missing
  EXPECT_EQ((nans.operator()<2, true>()), 64);
#endif
}

TENDON_KERNEL void copy_outside_kernel(const Bf16* from, int offset, bool commits, float* out) {
  TENDON_SHARED(Bf16, tile, 16);
  copy_async(tile + offset, from, false);
  if (commits) copy_commit();
  copy_wait<0>();
  *out = widen(tile[offset]);
}

TEST_P(Tiles, CopiesAreChecked) {
  std::vector<Bf16> from(16, to_bf16(1.0F));
  float out = 5;
  const LaunchShape shape{.grid = 1, .block = 1};
  EXPECT_EQ(failure<copy_outside_kernel>(shape, from.data(), 8, true, &out), "");
  EXPECT_EQ(out, 0);  // not valid: zeros
  EXPECT_THAT(failure<copy_outside_kernel>(shape, from.data(), 16, true, &out), HasSubstr("outside"));
  EXPECT_THAT(failure<copy_outside_kernel>(shape, from.data(), 4, true, &out), HasSubstr("aligned"));
#ifndef __SANITIZE_ADDRESS__
  EXPECT_EQ(failure<copy_outside_kernel>(shape, from.data(), 0, false, &out), "");
  EXPECT_TRUE(std::isnan(out));  // never committed
#endif
}

TENDON_ALL_ORDERS(Tiles);

}  // namespace
}  // namespace tendon::test
