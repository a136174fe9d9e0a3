// The kernel tracer over a fake libcupti.
#include "backend/cuda/cupti.h"

#include <dlfcn.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tendon {
namespace {

using Kind = DeviceActivity::Kind;

template <class Function>
Function hook(const char* name) {
  void* const library = dlopen("libcupti.so.13", RTLD_NOW);
  void* const found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(std::string("no fake libcupti: ") + name);
  return reinterpret_cast<Function>(found);
}

void kernel(const char* name, uint32_t correlation, uint64_t ns) {
  hook<void (*)(const char*, uint32_t, uint64_t)>("fake_kernel")(name, correlation, ns);
}
int count(const char* name) { return hook<int (*)()>(name)(); }

std::unique_ptr<DeviceTracer> tracer() {
  TracerOrReason made = make_cupti_tracer();
  if (made.tracer == nullptr) throw std::runtime_error(made.reason);
  return std::move(made.tracer);
}

TEST(Cupti, NamesKernelsTheirOperationsAndCalls) {
  const auto traced = tracer();
  EXPECT_EQ(traced->library(), "CUPTI 13.2");
  traced->start(true);
  traced->next_op(7);
  kernel("_ZN6tendon3gpu4normEv", 1, 2000);
  kernel("second", 2, 500);
  traced->next_op(-1);
  hook<void (*)(uint64_t, uint64_t)>("fake_copy")(99, 1000);
  size_t dropped = 1;
  const std::vector<DeviceActivity> all = traced->stop(dropped);
  EXPECT_EQ(dropped, 0U);
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[0].kind, Kind::kApi);
  EXPECT_EQ(all[0].name, "cudaLaunchKernel");
  EXPECT_EQ(all[1].kind, Kind::kKernel);
  EXPECT_EQ(all[1].name, "tendon::gpu::norm()");
  EXPECT_EQ(all[1].grid, "[2,66,1]");
  EXPECT_EQ(all[1].op, 7);
  EXPECT_EQ(all[1].correlation, all[0].correlation);
  EXPECT_DOUBLE_EQ(all[1].start_us, 0);
  EXPECT_DOUBLE_EQ(all[1].duration_us, 2);
  EXPECT_DOUBLE_EQ(all[3].start_us, 2);
  EXPECT_EQ(all[3].op, 7);
  EXPECT_EQ(all[4].kind, Kind::kCopy);
  EXPECT_EQ(all[4].bytes, 99);
  EXPECT_EQ(all[4].name, "copy host → device");
}

// Kinds of records stay on, as the library prepares a graph anew after a change; what was recorded is forgotten.
TEST(Cupti, StartsAgainWithoutSwitchingAnything) {
  const auto traced = tracer();
  traced->start(false);
  kernel("warm-up", 1, 1000);
  const int enables = count("fake_enables");
  traced->start(false);
  kernel("traced", 2, 3000);
  EXPECT_EQ(count("fake_enables"), enables);
  size_t dropped = 0;
  const std::vector<DeviceActivity> all = traced->stop(dropped);
  ASSERT_EQ(all.size(), 1U);  // no calls, and nothing from before the second start
  EXPECT_EQ(all[0].name, "traced");
  EXPECT_DOUBLE_EQ(all[0].start_us, 0);
  EXPECT_EQ(all[0].op, -1);
}

TEST(Cupti, HandsOutZeroedBuffersAlsoWhenTheyComeBackFull) {
  EXPECT_TRUE(hook<bool (*)()>("fake_takes_zeroed_buffers")());
  const auto traced = tracer();
  traced->start(false);
  constexpr uint32_t kKernels = 30000;  // more than the buffers that were made before hold
  const int requests = count("fake_requests");
  for (uint32_t i = 0; i < kKernels; ++i) kernel("k", i, 1);
  EXPECT_GT(count("fake_requests"), requests + 4);
  size_t dropped = 0;
  EXPECT_EQ(traced->stop(dropped).size(), kKernels);
  EXPECT_EQ(count("fake_dirty_bytes"), 0);
}

}  // namespace
}  // namespace tendon
