// What is refused before a card is touched, and what a card allows while its stream is being captured.
#include <thread>

#include "backend/gpu/cards.h"
#include "backend/sim/sim_backend.h"
#include "fixture.h"

namespace tendon::test {
namespace {

using namespace tendon::gpu;
using sim::CaptureFault;
using sim::SimOptions;
using testing::AllOf;
using testing::HasSubstr;

// --- refusals -------------------------------------------------------------------------------------------------------

TEST(BuiltFor, FollowsTheRulesOfTheCompiler) {
  EXPECT_TRUE(is_built_for("90a-real", 90));
  EXPECT_FALSE(is_built_for("90a-real", 100));
  EXPECT_FALSE(is_built_for("90a-real", 89));
  EXPECT_TRUE(is_built_for("80-real", 86));   // the same major number
  EXPECT_FALSE(is_built_for("86-real", 80));  // an older card
  EXPECT_FALSE(is_built_for("80-real", 90));  // no code to translate
  EXPECT_TRUE(is_built_for("80", 90));        // the driver translates
  EXPECT_TRUE(is_built_for("80-virtual", 120));
  EXPECT_FALSE(is_built_for("90-virtual", 89));
  for (const char* list : {"80-real;90a-real", "80-real,90a-real"}) {
    EXPECT_TRUE(is_built_for(list, 80));
    EXPECT_TRUE(is_built_for(list, 90));
    EXPECT_FALSE(is_built_for(list, 75));
    EXPECT_FALSE(is_built_for(list, 100));
  }
  EXPECT_FALSE(is_built_for("", 90));
  EXPECT_TRUE(is_built_for("gfx942,gfx950", 950));
  EXPECT_FALSE(is_built_for("gfx942,gfx950", 943));  // no code runs on another kind of card
}

Machine two_cards() {
  return {.vendor = "NVIDIA",
          .visibility = "CUDA_VISIBLE_DEVICES",
          .cards = {{"Tesla T4", 75}, {"NVIDIA A100", 80}, {"NVIDIA B200", 100}},
          .built_for = "80-real,90a-real"};
}

std::string refused(const Machine& machine, int index) {
  try {
    check_card(machine, index);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    return error.what();
  }
  return "";
}

TEST(CheckCard, TakesWhatIsBuiltFor) { EXPECT_EQ(refused(two_cards(), 1), ""); }

TEST(CheckCard, NamesTheDriversTroubleAndTheWayOut) {
  Machine machine = two_cards();
  machine.driver = Driver::kMissing;
  machine.detail = "no such device node";
  EXPECT_THAT(refused(machine, 1), AllOf(HasSubstr("driver"), HasSubstr("no such device node"), HasSubstr("nvidia-smi"),
                                         HasSubstr("--backend cpu")));
  machine.driver = Driver::kTooOld;
  machine.driver_version = "CUDA 11.4";
  machine.needed_version = "CUDA 13.0";
  EXPECT_THAT(refused(machine, 1), AllOf(HasSubstr("too old"), HasSubstr("CUDA 11.4"), HasSubstr("CUDA 13.0"),
                                         HasSubstr("newer driver"), HasSubstr("--backend cpu")));
  machine = two_cards();
  machine.cards.clear();
  EXPECT_THAT(refused(machine, 0), AllOf(HasSubstr("visible"), HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST(CheckCard, ListsTheCardsForAnIndexThatIsNotThere) {
  for (const int index : {3, -1}) {
    EXPECT_THAT(refused(two_cards(), index),
                AllOf(HasSubstr(fmt::format("no card {}", index)), HasSubstr("sees 3"), HasSubstr("0 Tesla T4 (sm_75)"),
                      HasSubstr("1 NVIDIA A100 (sm_80)"), HasSubstr("--device")));
  }
}

TEST(CheckCard, NamesCardArchitectureAndBuild) {
  EXPECT_THAT(refused(two_cards(), 0), AllOf(HasSubstr("Tesla T4"), HasSubstr("sm_75"), HasSubstr("sm_80")));
  EXPECT_THAT(refused(two_cards(), 2),
              AllOf(HasSubstr("NVIDIA B200"), HasSubstr("sm_100"), HasSubstr("80-real,90a-real"),
                    HasSubstr("TENDON_CUDA_ARCHITECTURES=100-real"), HasSubstr("--backend cpu")));
}

TEST(CheckCard, SpeaksOfTheVendorsOwnThings) {
  Machine machine{.vendor = "AMD",
                  .visibility = "HIP_VISIBLE_DEVICES",
                  .cards = {{"AMD Instinct MI300X", 942}, {"AMD Instinct MI250X", 900}, {"AMD Radeon", 1100}},
                  .built_for = "gfx942,gfx950",
                  .lister = "rocminfo",
                  .prefix = "gfx",
                  .oldest = 942,
                  .rebuild = ""};
  EXPECT_EQ(refused(machine, 0), "");
  EXPECT_THAT(refused(machine, 1),
              AllOf(HasSubstr("gfx900; tendon needs gfx942"), HasSubstr("0 AMD Instinct MI300X (gfx942)")));
  EXPECT_THAT(refused(machine, 2), AllOf(HasSubstr("gfx1100; this build holds kernels for gfx942,gfx950 only"),
                                         HasSubstr("--device"), testing::Not(HasSubstr("build with"))));
  machine.cards.clear();
  EXPECT_THAT(refused(machine, 0),
              AllOf(HasSubstr("No AMD card"), HasSubstr("rocminfo"), HasSubstr("HIP_VISIBLE_DEVICES")));
}

// --- capture --------------------------------------------------------------------------------------------------------

TENDON_KERNEL void add_one_kernel(float* values) { values[threadIdx.x] += 1; }

class Capture : public testing::Test {
 protected:
  static std::unique_ptr<Runtime> card(CaptureFault fault = CaptureFault::kNone, size_t node = 0) {
    return sim::make_sim_runtime({.capture_fault = fault, .failing_node = node});
  }
  void launch_on(Runtime& runtime) {
    launch<add_one_kernel>({.grid = 1, .block = 4, .stream = runtime.stream()}, values.data());
  }
  // The stream is usable: what is launched runs.
  void expect_usable(Runtime& runtime) {
    const float before = values[0];
    launch_on(runtime);
    runtime.synchronize();
    EXPECT_EQ(values[0], before + 1);
  }

  std::vector<float> values = std::vector<float>(4);
};

TEST_F(Capture, RecordsInsteadOfRunningAndRunsAtEveryLaunch) {
  const auto runtime = card();
  runtime->begin_capture();
  launch_on(*runtime);
  launch_on(*runtime);
  const auto graph = runtime->end_capture();
  runtime->synchronize();
  EXPECT_EQ(values[3], 0);
  for (int run = 1; run <= 3; ++run) {
    graph->launch(runtime->stream());
    runtime->synchronize();
    EXPECT_EQ(values[3], static_cast<float>(2 * run));
  }
  EXPECT_EQ(runtime->counters().captures, 1U);
  EXPECT_EQ(runtime->counters().instantiations, 1U);
  EXPECT_EQ(runtime->counters().graph_launches, 3U);
}

TEST_F(Capture, WhatWaitsOrAllocatesIsRefusedAndLosesIt) {
  const std::vector<std::pair<const char*, void (*)(Runtime&)>> calls = {
      {"allocating device memory", [](Runtime& r) { r.allocate(16); }},
      {"allocating pinned host memory", [](Runtime& r) { r.allocate_host(16); }},
      {"waiting for the card", [](Runtime& r) { r.synchronize(); }},
      {"legacy stream",
       [](Runtime&) { launch<add_one_kernel>({.grid = 1, .block = 1}, static_cast<float*>(nullptr)); }},
  };
  for (const auto& [what, call] : calls) {
    const auto runtime = card();
    runtime->begin_capture();
    launch_on(*runtime);
    EXPECT_THAT(refusal([&] { call(*runtime); }), HasSubstr(what));
    if (std::string(what) != "legacy stream") {
      EXPECT_THAT(refusal([&] { launch_on(*runtime); }), HasSubstr("invalid"));
      EXPECT_THAT(refusal([&] { runtime->end_capture(); }), HasSubstr("invalid"));
    }
    runtime->abandon_capture();
    expect_usable(*runtime);
  }
}

TEST_F(Capture, IsPrivateToItsThread) {
  const auto runtime = card();
  const auto other_runtime = card();
  std::vector<float> others(4);
  runtime->begin_capture();
  launch_on(*runtime);
  std::thread([&] {  // a stream of its own, and memory of the card that is being captured
    launch<add_one_kernel>({.grid = 1, .block = 4, .stream = other_runtime->stream()}, others.data());
    other_runtime->synchronize();
    runtime->release(runtime->allocate(64));
  })
      .join();
  launch_on(*runtime);
  const auto graph = runtime->end_capture();
  EXPECT_EQ(others[0], 1);
  graph->launch(runtime->stream());
  runtime->synchronize();
  EXPECT_EQ(values[0], 2);
}

TEST_F(Capture, OrderedFaultsComeWhereTheyShouldAndLeaveTheStreamUsable) {
  for (const CaptureFault fault :
       {CaptureFault::kBegin, CaptureFault::kNode, CaptureFault::kEnd, CaptureFault::kInstantiate}) {
    const auto runtime = card(fault, 1);
    EXPECT_THAT(refusal([&] {
                  runtime->begin_capture();
                  launch_on(*runtime);
                  launch_on(*runtime);
                  runtime->end_capture();
                }),
                HasSubstr("ordered fault"));
    runtime->abandon_capture();
    expect_usable(*runtime);
  }
}

// --- memory ---------------------------------------------------------------------------------------------------------

std::string allocation_failure(const SimOptions& options, int blocks, size_t bytes) {
  const auto backend = sim::make_sim_backend(options, {});
  std::vector<DeviceBlock> held;
  try {
    for (int i = 0; i < blocks; ++i) held.emplace_back(*backend, bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    return error.what();
  }
  return "";
}

TEST(Memory, ShortageNamesNeedFreeAndTheWayOut) {
  EXPECT_EQ(allocation_failure({.memory_bytes = size_t{64} << 20}, 3, size_t{20} << 20), "");
  EXPECT_THAT(allocation_failure({.memory_bytes = size_t{64} << 20}, 4, size_t{20} << 20),
              AllOf(HasSubstr("Not enough memory"), HasSubstr("21 MB are needed"), HasSubstr("4 MB are free"),
                    HasSubstr("smaller batch")));
  EXPECT_EQ(allocation_failure({.failing_allocation = 5}, 4, 256), "");
  EXPECT_THAT(allocation_failure({.failing_allocation = 4}, 4, 256), HasSubstr("Not enough memory"));
}

TEST(Memory, IsGivenBack) {
  Runtime* runtime = nullptr;
  const auto backend = sim::make_sim_backend({}, {}, &runtime);
  const size_t free = backend->info().free_bytes;
  for (int i = 0; i < 3; ++i) {
    const DeviceBlock block(*backend, 1000);
    EXPECT_EQ(backend->info().free_bytes, free - 1000);
  }
  EXPECT_EQ(backend->info().free_bytes, free);
  EXPECT_EQ(runtime->counters().allocations, 3U);
}

}  // namespace
}  // namespace tendon::test
