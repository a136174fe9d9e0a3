// What the shim must get right, and what it must catch: barriers, wave operations, shared memory, clusters, overlap.
#include <algorithm>
#include <numeric>

#include "fixture.h"

namespace tendon::test {
namespace {

using namespace tendon::gpu;
using testing::HasSubstr;

constexpr int kThreads = 128;

// --- indices --------------------------------------------------------------------------------------------------------

TENDON_KERNEL void count_kernel(int* counts) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  ++counts[block * blockDim.x * blockDim.y * blockDim.z + thread];
}

TEST_P(Simt, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> counts(3 * 2 * 4 * 5 * 3 * 2);
  launch<count_kernel>({.grid = {3, 2, 4}, .block = {5, 3, 2}, .stream = stream()}, counts.data());
  wait();
  EXPECT_TRUE(std::ranges::all_of(counts, [](int count) { return count == 1; }));
}

TENDON_KERNEL void log_kernel(std::vector<int>* log) {
  log->push_back(static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x));
}

TEST_P(Simt, ThreadsRunInTheWantedOrder) {
  std::vector<int> log;
  launch<log_kernel>({.grid = 3, .block = kThreads, .stream = stream()}, &log);
  wait();
  ASSERT_EQ(log.size(), size_t{3 * kThreads});
  EXPECT_EQ(std::ranges::is_sorted(log), GetParam() == simt::Order::kForward);
  EXPECT_EQ(std::ranges::is_sorted(log, std::greater<>()), GetParam() == simt::Order::kReverse);
  std::ranges::sort(log);
  for (int i = 0; i < 3 * kThreads; ++i) EXPECT_EQ(log[static_cast<size_t>(i)], i);
}

TEST_P(Simt, GridsThatNoCardTakesAreRefused) {
  std::vector<int> counts(2048);
  EXPECT_THAT(failure<count_kernel>({.grid = 1, .block = 1025}, counts.data()), HasSubstr("cannot be launched"));
  EXPECT_THAT(failure<count_kernel>({.grid = {1, 65536}, .block = 1}, counts.data()), HasSubstr("cannot be launched"));
  EXPECT_THAT(failure<count_kernel>({.grid = {0, 1}, .block = 1}, counts.data()), HasSubstr("cannot be launched"));
  EXPECT_THAT(failure<count_kernel>({.grid = 1, .block = 1, .shared_bytes = size_t{228} << 10}, counts.data()),
              HasSubstr("shared memory"));
  EXPECT_THAT(failure<count_kernel>({.grid = 3, .block = 1, .cluster = 2}, counts.data()), HasSubstr("clusters"));
}

TEST_P(Simt, TheLegacyStreamIsRefused) {
  std::vector<int> counts(1);
  EXPECT_THAT(refusal([&] { launch<count_kernel>({.grid = 1, .block = 1}, counts.data()); }),
              HasSubstr("legacy stream"));
}

// --- barriers -------------------------------------------------------------------------------------------------------

// Each thread reads what its neighbour wrote.
template <bool kBarrier>
TENDON_KERNEL void rotate_kernel(float* out) {
  TENDON_SHARED(float, values, kThreads);
  const int t = static_cast<int>(threadIdx.x);
  values[t] = static_cast<float>(t);
  if (kBarrier) block_sync();
  out[t] = values[(t + 1) % kThreads];
}

TEST_P(Simt, ABarrierMakesWritesVisible) {
  std::vector<float> out(kThreads);
  launch<rotate_kernel<true>>({.grid = 1, .block = kThreads, .stream = stream()}, out.data());
  wait();
  for (int t = 0; t < kThreads; ++t) EXPECT_EQ(out[static_cast<size_t>(t)], static_cast<float>((t + 1) % kThreads));
}

TEST_P(Simt, AMissingBarrierShows) {
  std::vector<float> out(kThreads);
  launch<rotate_kernel<false>>({.grid = 1, .block = kThreads, .stream = stream()}, out.data());
  wait();
  EXPECT_GT(count_nan(out), 0);
}

// A second round overwrites what slow threads have not read.
template <bool kBarrier>
TENDON_KERNEL void two_rounds_kernel(float* out) {
  TENDON_SHARED(float, values, kThreads);
  const int t = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int round = 0; round < 2; ++round) {
    values[t] = static_cast<float>(t + 1000 * round);
    block_sync();
    sum += values[(t + kThreads / 2) % kThreads];
    if (kBarrier) block_sync();
  }
  out[t] = sum;
}

TEST_P(Simt, AMissingSecondBarrierShows) {
  for (const bool barrier : {true, false}) {
    std::vector<float> out(kThreads);
    const LaunchShape shape{.grid = 1, .block = kThreads, .stream = stream()};
    barrier ? launch<two_rounds_kernel<true>>(shape, out.data()) : launch<two_rounds_kernel<false>>(shape, out.data());
    wait();
    int wrong = 0;
    for (int t = 0; t < kThreads; ++t) {
      const int from = (t + kThreads / 2) % kThreads;
      wrong += out[static_cast<size_t>(t)] == static_cast<float>(2 * from + 1000) ? 0 : 1;
    }
    EXPECT_EQ(wrong == 0, barrier);
  }
}

TENDON_KERNEL void early_exit_kernel() {
  if (threadIdx.x == 5) return;
  block_sync();
}
TENDON_KERNEL void two_places_kernel() {
  if (threadIdx.x < 64) {
    block_sync();
  } else {
    block_sync();
  }
}
TENDON_KERNEL void one_barrier_more_kernel() {
  block_sync();
  if (threadIdx.x < 64) block_sync();
}

TEST_P(Simt, DivergentBarriersAreErrors) {
  EXPECT_THAT(failure<early_exit_kernel>({.grid = 1, .block = kThreads}), HasSubstr("simt_test.cc"));
  EXPECT_THAT(failure<two_places_kernel>({.grid = 1, .block = kThreads}), HasSubstr("wait at simt_test.cc"));
  EXPECT_THAT(failure<one_barrier_more_kernel>({.grid = 1, .block = kThreads}), HasSubstr("barrier"));
  // The card can be used again.
  std::vector<int> counts(kThreads);
  EXPECT_EQ(failure<count_kernel>({.grid = 1, .block = kThreads}, counts.data()), "");
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), kThreads);
}

// --- waves ----------------------------------------------------------------------------------------------------------

TENDON_KERNEL void sums_kernel(float* wave_sums, float* wave_maxima, float* block_sums) {
  TENDON_SHARED(float, shared, kThreads / kWarpSize);
  const auto value = static_cast<float>(threadIdx.x);
  wave_sums[threadIdx.x] = wave_sum(value);
  wave_maxima[threadIdx.x] = wave_max(value);
  block_sums[threadIdx.x] = block_sum(value, shared);
}

TEST_P(Simt, SumsOverWavesAndBlocks) {
  std::vector<float> waves(kThreads), maxima(kThreads), blocks(kThreads);
  launch<sums_kernel>({.grid = 2, .block = kThreads, .stream = stream()}, waves.data(), maxima.data(), blocks.data());
  wait();
  for (int t = 0; t < kThreads; ++t) {
    const int first = t / kWarpSize * kWarpSize;
    EXPECT_EQ(waves[static_cast<size_t>(t)], static_cast<float>(kWarpSize * (2 * first + kWarpSize - 1) / 2));
    EXPECT_EQ(maxima[static_cast<size_t>(t)], static_cast<float>(first + kWarpSize - 1));
    EXPECT_EQ(blocks[static_cast<size_t>(t)], static_cast<float>(kThreads * (kThreads - 1) / 2));
  }
}

TENDON_KERNEL void exchange_kernel(int* out) {
  const int mine = lane();
  int* const to = out + 5 * threadIdx.x;
  to[0] = __shfl_xor_sync(~0U, mine, 5);
  to[1] = __shfl_sync(~0U, mine, 3);
  to[2] = __shfl_up_sync(~0U, mine, 2);
  to[3] = __shfl_down_sync(~0U, mine, 2);
  to[4] = static_cast<int>(__ballot_sync(~0U, mine % 3 == 0) & 0xffffU);
  if (__any_sync(~0U, mine == 1) && !__all_sync(~0U, mine == 1)) to[4] += 1 << 20;
}

TEST_P(Simt, LanesExchangeValues) {
  std::vector<int> out(5 * kThreads);
  launch<exchange_kernel>({.grid = 1, .block = kThreads, .stream = stream()}, out.data());
  wait();
  for (int t = 0; t < kThreads; ++t) {
    const int l = t % kWarpSize;
    const std::vector<int> got(out.begin() + 5 * t, out.begin() + 5 * t + 5);
    EXPECT_THAT(got, testing::ElementsAre(l ^ 5, 3, l < 2 ? l : l - 2, l + 2 < kWarpSize ? l + 2 : l,
                                          0b1001001001001001 + (1 << 20)));
  }
}

TENDON_KERNEL void half_a_wave_kernel() {
  if (lane() < 16) wave_sync();
}
TENDON_KERNEL void two_operations_kernel(float* out) {
  if (lane() < 16) {
    out[threadIdx.x] = shuffle_xor(1.0F, 1);
  } else {
    wave_sync();
  }
}
TENDON_KERNEL void short_wave_kernel() { wave_sync(); }

TEST_P(Simt, WaveOperationsNeedAllLanesAtOnePlace) {
  std::vector<float> out(kThreads);
  EXPECT_THAT(failure<half_a_wave_kernel>({.grid = 1, .block = kThreads}), HasSubstr("a wave barrier"));
  EXPECT_THAT(failure<two_operations_kernel>({.grid = 1, .block = kThreads}, out.data()), HasSubstr("other lanes"));
  EXPECT_THAT(failure<short_wave_kernel>({.grid = 1, .block = 40}), HasSubstr("lanes"));
}

// Lanes are not in lockstep: what one lane leaves in shared memory another must wait for.
template <bool kBarrier>
TENDON_KERNEL void lane_rotate_kernel(float* out) {
  TENDON_SHARED(float, values, kThreads);
  const int first = wave() * kWarpSize;
  values[first + lane()] = static_cast<float>(lane());
  if (kBarrier) wave_sync();
  out[threadIdx.x] = values[first + (lane() + 1) % kWarpSize];
}

TEST_P(Simt, AMissingWaveBarrierShows) {
  std::vector<float> out(kThreads);
  launch<lane_rotate_kernel<true>>({.grid = 1, .block = kThreads, .stream = stream()}, out.data());
  wait();
  EXPECT_EQ(count_nan(out), 0);
  launch<lane_rotate_kernel<false>>({.grid = 1, .block = kThreads, .stream = stream()}, out.data());
  wait();
  EXPECT_GT(count_nan(out), 0);
}

// --- shared memory --------------------------------------------------------------------------------------------------

TENDON_KERNEL void stale_kernel(float* out) {
  TENDON_SHARED(float, fixed, kThreads);
  TENDON_DYNAMIC_SHARED(memory);
  auto* const dynamic = reinterpret_cast<float*>(memory);
  float* const to = out + 2 * (blockIdx.x * blockDim.x + threadIdx.x);
  to[0] = fixed[threadIdx.x];
  to[1] = dynamic[threadIdx.x];
  fixed[threadIdx.x] = dynamic[threadIdx.x] = 1;
}

TEST_P(Simt, SharedMemoryIsFreshInEveryBlock) {
  std::vector<float> out(6 * kThreads);
  launch<stale_kernel>({.grid = 3, .block = kThreads, .shared_bytes = kThreads * sizeof(float), .stream = stream()},
                       out.data());
  wait();
  EXPECT_EQ(count_nan(out), 6 * kThreads);
}

TENDON_KERNEL void past_dynamic_kernel(int at) {
  TENDON_DYNAMIC_SHARED(memory);
  memory[at] = 1;
}
TENDON_KERNEL void past_static_kernel(int at) {
  TENDON_SHARED(float, first, 8);
  TENDON_SHARED(float, second, 8);
  second[0] = 0;
  first[at] = 1;
}

// Sanitizers stop the program at the access; without it the guard bands are looked at when the block ends.
#ifdef __SANITIZE_ADDRESS__
#define TENDON_EXPECT_CAUGHT(statement) EXPECT_DEATH(statement, "use-after-poison|out of bounds")
#else
#define TENDON_EXPECT_CAUGHT(statement) EXPECT_THAT(statement, HasSubstr("outside its arrays"))
#endif

TEST_P(Simt, SharedMemoryOutOfRangeIsCaught) {
  const LaunchShape shape{.grid = 1, .block = 1, .shared_bytes = 100};
  EXPECT_EQ(failure<past_dynamic_kernel>(shape, 99), "");
  TENDON_EXPECT_CAUGHT(failure<past_dynamic_kernel>(shape, 104));
  TENDON_EXPECT_CAUGHT(failure<past_dynamic_kernel>(shape, -1));
  EXPECT_EQ(failure<past_static_kernel>(shape, 7), "");
  TENDON_EXPECT_CAUGHT(failure<past_static_kernel>(shape, 8));
}

// --- atomics --------------------------------------------------------------------------------------------------------

TENDON_KERNEL void atomics_kernel(int* sum, float* float_sum, unsigned* maximum, unsigned* ticket, int* last_block) {
  atomicAdd(sum, 1);
  atomicAdd(float_sum, 0.5F);
  atomicMax(maximum, blockIdx.x * blockDim.x + threadIdx.x);
  block_sync();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1) *last_block += 1;
}

TEST_P(Simt, Atomics) {
  int sum = 0;
  float float_sum = 0;
  unsigned maximum = 0;
  unsigned ticket = 0;
  int last_block = 0;
  for (int run = 1; run <= 2; ++run) {
    launch<atomics_kernel>({.grid = 5, .block = kThreads, .stream = stream()}, &sum, &float_sum, &maximum, &ticket,
                           &last_block);
    wait();
    EXPECT_EQ(sum, 5 * kThreads * run);
    EXPECT_EQ(float_sum, 2.5F * kThreads * static_cast<float>(run));
    EXPECT_EQ(maximum, 5U * kThreads - 1);
    EXPECT_EQ(ticket, 0U);
    EXPECT_EQ(last_block, run);
  }
}

// --- clusters -------------------------------------------------------------------------------------------------------

// Every block sends its rank to the next one.
template <bool kFirst, bool kSecond>
TENDON_KERNEL void cluster_kernel(float* out) {
  TENDON_DYNAMIC_SHARED(memory);
  auto* const values = reinterpret_cast<float*>(memory);
  if (kFirst) cluster_arrive();
  const int rank = cluster_rank();
  if (kFirst) cluster_wait();
  peer_shared(values, (rank + 1) % 4)[threadIdx.x] = static_cast<float>(blockIdx.x);
  if (kSecond) {
    cluster_arrive();
    cluster_wait();
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = values[threadIdx.x];
}

TEST_P(Simt, BlocksOfAClusterReachEachOther) {
  std::vector<float> out(8 * kThreads);
  const LaunchShape shape{
      .grid = 8, .block = kThreads, .shared_bytes = kThreads * sizeof(float), .stream = stream(), .cluster = 4};
  launch<cluster_kernel<true, true>>(shape, out.data());
  wait();
  for (int i = 0; i < 8 * kThreads; ++i) {
    const int block = i / kThreads;
    EXPECT_EQ(out[static_cast<size_t>(i)], static_cast<float>(block / 4 * 4 + (block + 3) % 4));
  }
  launch<cluster_kernel<true, false>>(shape, out.data());
  wait();
  EXPECT_GT(count_nan(out), 0);  // a missing cluster barrier shows
}

TENDON_KERNEL void cluster_divergent_kernel() {
  if (blockIdx.x == 1) return;
  cluster_arrive();
  cluster_wait();
}
TENDON_KERNEL void cluster_wait_only_kernel() { cluster_wait(); }

TEST_P(Simt, DivergentClusterBarriersAreErrors) {
  EXPECT_THAT(failure<cluster_divergent_kernel>({.grid = 2, .block = 32, .cluster = 2}), HasSubstr("cluster"));
  EXPECT_THAT(failure<cluster_wait_only_kernel>({.grid = 2, .block = 32, .cluster = 2}), HasSubstr("arrival"));
}

// --- overlapping kernels --------------------------------------------------------------------------------------------

TENDON_KERNEL void produce_kernel(float* values) {
  launch_dependents();
  values[threadIdx.x] += 1;
}
template <bool kWaits>
TENDON_KERNEL void consume_kernel(const float* values, float* early, float* late) {
  early[threadIdx.x] = values[threadIdx.x];
  if (kWaits) wait_for_producers();
  late[threadIdx.x] = values[threadIdx.x];
}

TEST_P(Simt, AnOverlappingKernelStartsBeforeTheOneInFrontHasRun) {
  std::vector<float> values(kThreads), early(kThreads), late(kThreads);
  const LaunchShape shape{.grid = 1, .block = kThreads, .stream = stream()};
  LaunchShape overlapping = shape;
  overlapping.overlaps = true;
  int seen_early = 0;
  for (int run = 1; run <= 3; ++run) {
    launch<produce_kernel>(shape, values.data());
    launch<consume_kernel<true>>(overlapping, values.data(), early.data(), late.data());
    wait();
    EXPECT_EQ(late, std::vector<float>(kThreads, static_cast<float>(run)));
    seen_early += std::ranges::count(early, static_cast<float>(run - 1)) > 0 ? 1 : 0;
  }
  EXPECT_GT(seen_early, 0);
}

TEST_P(Simt, AnOverlappingKernelThatNeverWaitsIsAnError) {
  std::vector<float> values(kThreads), early(kThreads), late(kThreads);
  const LaunchShape shape{.grid = 1, .block = kThreads, .stream = stream()};
  LaunchShape overlapping = shape;
  overlapping.overlaps = true;
  EXPECT_THAT(refusal([&] {
                for (int run = 0; run < 3; ++run) {
                  launch<produce_kernel>(shape, values.data());
                  launch<consume_kernel<false>>(overlapping, values.data(), early.data(), late.data());
                  wait();
                }
              }),
              HasSubstr("never waited"));
}

TENDON_ALL_ORDERS(Simt);

}  // namespace
}  // namespace tendon::test
