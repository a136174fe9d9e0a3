#include "plan/plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../support/copying_backend.h"
#include "backend/registry.h"
#include "base/check.h"
#include "samples.h"

namespace tendon::test {
namespace {

// Host memory and no kernels: records what the plan asks of a backend.
class FakeBackend final : public Backend {
 public:
  std::function<bool(const Op&)> accepts = [](const Op&) { return true; };
  std::function<size_t(const Op&)> workspace = [](const Op&) { return size_t{0}; };
  std::vector<Op> prepared;
  size_t prepared_workspace = 0;
  Transfers transfers;
  int allocations = 0, releases = 0, runs = 0;

  std::string_view name() const override { return "fake"; }
  DeviceInfo info() const override { return {}; }
  bool supports(const Op& op) const override { return accepts(op); }
  std::string kernel_name(const Op& op) const override { return std::string(op_name(op)); }
  size_t workspace_bytes(const Op& op) const override { return workspace(op); }
  std::unique_ptr<Executable> prepare(std::vector<Op> ops, void* memory, size_t bytes,
                                      const Transfers& copies) override {
    prepared = std::move(ops);
    transfers = copies;
    prepared_workspace = bytes;
    EXPECT_EQ(memory == nullptr, bytes == 0);
    return std::make_unique<Run>(*this);
  }
  void* allocate(size_t bytes) override {
    ++allocations;
    void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(memory, 0xee, bytes);  // nobody may rely on what was there
    return memory;
  }
  void release(void* memory) noexcept override {
    ++releases;
    std::free(memory);
  }
  void upload(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  void fill_zero(void* device, size_t bytes) override { std::memset(device, 0, bytes); }
  bool uses_host_memory() const override { return true; }

 private:
  struct Run final : Executable {
    explicit Run(FakeBackend& backend) : owner(backend) {}
    Status run(OpTimes*) noexcept override {
      ++owner.runs;
      return Status::error(StatusCode::kDevice, "no kernels");
    }
    FakeBackend& owner;
  };
};

Backend& cpu() {
  static const std::unique_ptr<Backend> backend = make_backend("cpu");
  return *backend;
}

template <class F>
std::string internal_error(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInternal);
    return error.what();
  }
  return "nothing thrown";
}

std::vector<std::string> names_of(const Plan& plan) {
  std::vector<std::string> names;
  for (const Op& op : plan.ops()) names.emplace_back(op_name(op));
  return names;
}

std::vector<float> read(const Plan& plan, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(plan.tensor(name).elements()));
  plan.read(name, values.data(), values.size() * sizeof(float));
  return values;
}

void write(Plan& plan, const std::string& name, const std::vector<float>& values) {
  plan.write(name, values.data(), values.size() * sizeof(float));
}

// out = x + dt · v through two temporaries.
Recorder small_forward() {
  Recorder r;
  const Tensor x = r.input("x", DType::kF32, {2, 3});
  const Tensor v = r.input("v", DType::kF32, {2, 3});
  const Tensor a = r.temporary(DType::kF32, {2, 3});
  const Tensor b = r.temporary(DType::kF32, {2, 3});
  const Tensor out = r.kept("out", DType::kF32, {2, 3});
  r.add(ResidualAdd{.x = x, .y = v, .out = a});
  r.add(ResidualAdd{.x = a, .y = v, .out = b});
  r.add(EulerStep{.x = b, .v = v, .out = out, .dt = -2.0F});
  return r;
}

TEST(Plan, WritesRunsAndReads) {
  Plan plan(cpu(), small_forward());
  write(plan, "x", {1, 2, 3, 4, 5, 6});
  write(plan, "v", {10, 20, 30, 40, 50, 60});
  ASSERT_TRUE(plan.run().is_ok());
  EXPECT_EQ(read(plan, "out"), (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

TEST(Plan, InputsPersistOverRuns) {
  Plan plan(cpu(), small_forward());
  write(plan, "x", {1, 2, 3, 4, 5, 6});
  for (const float v : {1.0F, -3.0F, 7.0F}) {
    write(plan, "v", std::vector<float>(6, v));
    for (int again = 0; again < 3; ++again) {
      ASSERT_TRUE(plan.run().is_ok());
      EXPECT_EQ(read(plan, "out"), (std::vector<float>{1, 2, 3, 4, 5, 6}));
      EXPECT_EQ(read(plan, "x"), (std::vector<float>{1, 2, 3, 4, 5, 6})) << "the run overwrote an input";
      EXPECT_EQ(read(plan, "v"), std::vector<float>(6, v));
    }
  }
}

TEST(Plan, KeptValuesSurviveTheRest) {
  Recorder r;
  const Tensor x = r.input("x", DType::kF32, {4});
  const Tensor early = r.temporary(DType::kF32, {4});
  r.add(ResidualAdd{.x = x, .y = x, .out = early});
  Tensor last = early;
  for (int i = 0; i < 8; ++i) {
    const Tensor next = r.temporary(DType::kF32, {4});
    r.add(ResidualAdd{.x = last, .y = last, .out = next});
    last = next;
  }
  const Tensor out = r.kept("out", DType::kF32, {4});
  r.add(Cast{.x = last, .out = out});
  r.keep(early, "early");
  Plan plan(cpu(), r);
  write(plan, "x", {1, 2, 3, 4});
  ASSERT_TRUE(plan.run().is_ok());
  EXPECT_EQ(read(plan, "early"), (std::vector<float>{2, 4, 6, 8}));
  EXPECT_EQ(read(plan, "out"), (std::vector<float>{512, 1024, 1536, 2048}));
  // Seven of the eight later temporaries share two places.
  EXPECT_EQ(plan.arena_bytes(), 256U * 5);
}

TEST(Plan, MemoryIsZeroBeforeTheFirstRun) {
  FakeBackend backend;
  Plan plan(backend, small_forward());
  EXPECT_EQ(read(plan, "out"), std::vector<float>(6, 0.0F));
}

// Rows that scatter_rows leaves alone keep what earlier runs put there.
TEST(Plan, ScatterKeepsOtherRows) {
  Recorder r;
  const Tensor x = r.input("x", DType::kF32, {2, 2});
  const Tensor rows = r.input("rows", DType::kI32, {2});
  const Tensor cache = r.kept("cache", DType::kF32, {3, 2});
  r.add(ScatterRows{.x = x, .rows = rows, .out = cache});
  Plan plan(cpu(), r);
  write(plan, "x", {1, 2, 3, 4});
  const int32_t first[] = {2, -1};
  plan.write("rows", first, sizeof(first));
  ASSERT_TRUE(plan.run().is_ok());
  EXPECT_EQ(read(plan, "cache"), (std::vector<float>{0, 0, 0, 0, 1, 2}));
  const int32_t second[] = {-1, 0};
  plan.write("rows", second, sizeof(second));
  ASSERT_TRUE(plan.run().is_ok());
  EXPECT_EQ(read(plan, "cache"), (std::vector<float>{3, 4, 0, 0, 1, 2}));
}

TEST(Plan, ViewsAreBoundInsideTheirValue) {
  Recorder r;
  const Tensor x = r.input("x", DType::kF32, {2, 4});
  const Tensor out = r.kept("out", DType::kF32, {3, 2});
  r.add(Cast{.x = x.col_range(1, 2), .out = out.row_range(1, 2)});
  Plan plan(cpu(), r);
  write(plan, "x", {0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_TRUE(plan.run().is_ok());
  EXPECT_EQ(read(plan, "out"), (std::vector<float>{0, 0, 1, 2, 5, 6}));
}

// Random graphs against the same graph with a place of its own for every value.
TEST(Plan, SharedMemoryNeverShows) {
  std::mt19937 random(5);
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  for (int round = 0; round < 40; ++round) {
    Recorder r;
    const int64_t widths[] = {1, 70, 200};
    std::vector<Tensor> values;
    std::vector<std::vector<float>> truth;
    for (size_t i = 0; i < 3; ++i) {
      values.push_back(r.input("in" + std::to_string(i), DType::kF32, {widths[i]}));
      std::vector<float> numbers(static_cast<size_t>(widths[i]));
      for (float& x : numbers) x = static_cast<float>(below(100));
      truth.push_back(numbers);
    }
    for (size_t step = 0; step < 40; ++step) {
      const size_t a = below(4) == 0 ? below(values.size()) : values.size() - 1 - below(3);
      size_t b = a;
      for (size_t i = 0; i < values.size(); ++i) {
        if (values[i].cols() == values[a].cols() && below(2) == 0) b = i;
      }
      const Tensor out = r.temporary(DType::kF32, values[a].shape);
      r.add(EulerStep{.x = values[a], .v = values[b], .out = out, .dt = -0.5F});
      std::vector<float> numbers(truth[a].size());
      for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = truth[a][i] + -0.5F * truth[b][i];
      if (step % 9 == 4 || step == 39) r.keep(out, "v" + std::to_string(values.size()));
      values.push_back(out);
      truth.push_back(std::move(numbers));
    }
    Plan plan(cpu(), r);
    for (size_t i = 0; i < 3; ++i) write(plan, "in" + std::to_string(i), truth[i]);
    for (int again = 0; again < 2; ++again) {
      ASSERT_TRUE(plan.run().is_ok());
      int compared = 0;
      for (size_t i = 3; i < values.size(); ++i) {
        if (!plan.has("v" + std::to_string(i))) continue;
        ASSERT_EQ(read(plan, "v" + std::to_string(i)), truth[i]) << "round " << round << ", value " << i;
        ++compared;
      }
      ASSERT_EQ(compared, 5);
    }
  }
}

TEST(Plan, WrongSizesAndNamesAreRefused) {
  Plan plan(cpu(), small_forward());
  float numbers[8] = {};
  const std::string text = internal_error([&] { plan.write("x", numbers, 20); });
  EXPECT_NE(text.find("'x' holds 24 bytes, 20 given"), std::string::npos) << text;
  EXPECT_NE(internal_error([&] { plan.read("out", numbers, 32); }).find("'out' holds 24 bytes, 32 asked for"),
            std::string::npos);
  EXPECT_NE(internal_error([&] { plan.write("nosuch", numbers, 4); }).find("'nosuch'"), std::string::npos);
  EXPECT_NE(internal_error([&] { (void)plan.tensor(""); }).find("no value named ''"), std::string::npos)
      << "temporaries have no name";
  EXPECT_TRUE(plan.has("x") && plan.has("out"));
  EXPECT_FALSE(plan.has("nosuch"));
}

TEST(Plan, TwoValuesOfOneNameAreRefused) {
  Recorder r = small_forward();
  (void)r.kept("x", DType::kF32, {1});
  FakeBackend backend;
  EXPECT_NE(internal_error([&] { Plan(backend, r); }).find("two values are named 'x'"), std::string::npos);
  EXPECT_EQ(backend.allocations, backend.releases) << "memory is given back when planning fails";
}

Recorder fused_forward() {
  const Samples samples;
  Recorder r(samples.values().values());
  const Recorder::Scope scope = r.scope("prefix");
  r.add(samples.get<NormGateUpGelu>());
  r.add(samples.get<LinearResidual>());
  return r;
}

TEST(Plan, SupportedFusedOperationsStay) {
  FakeBackend backend;
  const Plan plan(backend, fused_forward());
  EXPECT_EQ(names_of(plan), (std::vector<std::string>{"norm_gate_up_gelu", "linear_residual"}));
  EXPECT_EQ(backend.prepared.size(), 2U);
}

TEST(Plan, UnsupportedFusedOperationsAreExpanded) {
  FakeBackend backend;
  backend.accepts = [](const Op& op) { return op_name(op) != "linear_residual"; };
  const Plan plan(backend, fused_forward());
  EXPECT_EQ(names_of(plan), (std::vector<std::string>{"norm_gate_up_gelu", "linear", "residual_add"}));
  EXPECT_EQ(plan.ops()[1].scope, "prefix.linear_residual");
}

TEST(Plan, ExpansionCanBeForced) {
  FakeBackend backend;
  const Plan plan(backend, fused_forward(), {.expand = {"norm_gate_up_gelu"}});
  EXPECT_EQ(names_of(plan), (std::vector<std::string>{"rms_norm", "linear", "linear", "gelu_mul", "linear_residual"}));
  const Plan both(backend, fused_forward(), {.expand = {"linear_residual", "norm_gate_up_gelu", "no_such_op"}});
  EXPECT_EQ(names_of(both),
            (std::vector<std::string>{"rms_norm", "linear", "linear", "gelu_mul", "linear", "residual_add"}));
  // A basic operation has nothing to expand to and stays.
  const Plan basic(backend, small_forward(), {.expand = {"euler_step"}});
  EXPECT_EQ(basic.ops().size(), 3U);
}

TEST(Plan, UnsupportedOperationIsNamedWithShapes) {
  FakeBackend backend;
  backend.accepts = [](const Op& op) { return op_name(op) != "gelu_mul" && op_name(op) != "norm_gate_up_gelu"; };
  const std::string text = internal_error([&] { Plan(backend, fused_forward()); });
  EXPECT_NE(text.find("backend fake has no kernel for gelu_mul"), std::string::npos) << text;
  EXPECT_NE(text.find("gate[6, 10] f32"), std::string::npos) << text;
  EXPECT_NE(text.find("prefix.norm_gate_up_gelu.gelu_mul"), std::string::npos) << text;
  // Forcing a basic operation does not hide that there is no kernel.
  backend.accepts = [](const Op& op) { return op_name(op) != "euler_step"; };
  EXPECT_NE(internal_error([&] { Plan(backend, small_forward(), {.expand = {"euler_step"}}); }).find("euler_step"),
            std::string::npos);
  EXPECT_EQ(backend.allocations, backend.releases);
}

TEST(Plan, OperationsAreBoundToAlignedMemory) {
  FakeBackend backend;
  const Plan plan(backend, fused_forward(), {.expand = {"norm_gate_up_gelu", "linear_residual"}});
  for (const Op& op : backend.prepared) {
    for_each_tensor(op, [&](const char* name, const Tensor& tensor, Access) {
      ASSERT_NE(tensor.data, nullptr) << op_label(op) << " " << name;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % 256, 0U) << op_label(op) << " " << name;
    });
  }
}

TEST(Plan, WorkspaceIsTheLargestThatAnyOperationNeeds) {
  FakeBackend backend;
  backend.workspace = [](const Op& op) { return op_name(op) == "euler_step" ? size_t{1000} : size_t{300}; };
  const Plan plan(backend, small_forward());
  EXPECT_EQ(plan.workspace_bytes(), 1000U);
  EXPECT_EQ(backend.prepared_workspace, 1000U);
}

TEST(Plan, NothingIsAllocatedAfterwardsAndAllIsReleased) {
  FakeBackend backend;
  {
    Plan plan(backend, small_forward());
    const int after_planning = backend.allocations;
    write(plan, "x", std::vector<float>(6, 1.0F));
    const Status status = plan.run();
    EXPECT_EQ(status.code(), StatusCode::kDevice) << "the backend's status is the plan's";
    EXPECT_STREQ(status.message(), "no kernels");
    (void)read(plan, "out");
    EXPECT_EQ(backend.allocations, after_planning);
    EXPECT_EQ(backend.runs, 1);
  }
  EXPECT_GT(backend.allocations, 0);
  EXPECT_EQ(backend.allocations, backend.releases);
}

// --- inputs and outputs ---------------------------------------------------------------------------------------------

// small_forward whose result is an output, between other values.
Recorder shared_forward() {
  Recorder r;
  const Tensor x = r.input("x", DType::kF32, {2, 3});
  const Tensor a = r.temporary(DType::kF32, {200, 3});
  const Tensor kept = r.kept("kept", DType::kF32, {2, 3});
  const Tensor out = r.output("out", DType::kF32, {2, 3});
  const Tensor v = r.input("v", DType::kF32, {2, 3});
  r.add(ResidualAdd{.x = x, .y = v, .out = kept});
  r.add(ResidualAdd{.x = kept, .y = v, .out = a.row_range(7, 2)});
  r.add(EulerStep{.x = a.row_range(7, 2), .v = v, .out = out, .dt = -2.0F});
  const Tensor second = r.output("second", DType::kF32, {2, 3});
  r.add(ResidualAdd{.x = out, .y = out, .out = second});
  return r;
}

TEST(Plan, InputsAndOutputsLieTogetherAtTheBeginning) {
  CopyingBackend backend;
  const Plan plan(backend, shared_forward());
  const Transfer in = backend.transfers.inputs;
  const Transfer out = backend.transfers.outputs;
  EXPECT_EQ(in.bytes, 512U);  // x and v, 256-byte aligned
  EXPECT_EQ(out.bytes, 512U);
  const auto offset = [&](const char* name) {
    return static_cast<char*>(plan.tensor(name).data) - static_cast<char*>(in.device);
  };
  EXPECT_EQ(offset("x"), 0);
  EXPECT_EQ(offset("v"), 256);
  EXPECT_EQ(offset("out"), 512);
  EXPECT_EQ(offset("second"), 768);
  EXPECT_GE(offset("kept"), 1024) << "kept values stay on the device";
  EXPECT_EQ(static_cast<char*>(out.device) - static_cast<char*>(in.device), 512);
  EXPECT_EQ(static_cast<char*>(out.host) - static_cast<char*>(in.host), 512) << "the mirror has the same layout";
  EXPECT_EQ(plan.pinned_bytes(), 1024U);
}

TEST(Plan, ADeviceCopiesInTheRunAndNowhereElse) {
  CopyingBackend backend;
  {
    Plan plan(backend, shared_forward());
    const Tensor x = plan.host("x");
    const Tensor v = plan.host("v");
    const Tensor out = plan.host("out");
    EXPECT_NE(x.data, plan.tensor("x").data);
    EXPECT_EQ(read(plan, "out"), std::vector<float>(6, 0.0F)) << "zero before the first run";
    const int allocated = backend.allocations + backend.host_allocations;
    for (const float scale : {1.0F, -3.0F}) {
      for (int i = 0; i < 6; ++i) x.as<float>()[i] = scale * static_cast<float>(i), v.as<float>()[i] = scale;
      ASSERT_TRUE(plan.run().is_ok());
      for (int i = 0; i < 6; ++i) EXPECT_EQ(out.as<float>()[i], scale * static_cast<float>(i));
      EXPECT_EQ(plan.host("second").as<float>()[5], 2 * scale * 5);
    }
    EXPECT_EQ(backend.uploads + backend.downloads, 0);
    EXPECT_EQ(backend.allocations + backend.host_allocations, allocated);
    // What tests and checks use: inputs and outputs through the mirror, the rest by a copy.
    write(plan, "x", {1, 2, 3, 4, 5, 6});
    write(plan, "v", std::vector<float>(6, 10.0F));
    ASSERT_TRUE(plan.run().is_ok());
    EXPECT_EQ(read(plan, "out"), (std::vector<float>{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(backend.uploads + backend.downloads, 0);
    EXPECT_EQ(read(plan, "kept"), (std::vector<float>{11, 12, 13, 14, 15, 16}));
    EXPECT_EQ(backend.downloads, 1);
  }
  EXPECT_EQ(backend.allocations, backend.releases);
  EXPECT_EQ(backend.host_allocations, 1);
  EXPECT_EQ(backend.host_releases, 1);
}

TEST(Plan, WhereTheHostComputesNothingIsMirrored) {
  Plan plan(cpu(), shared_forward());
  EXPECT_EQ(plan.pinned_bytes(), 0U);
  for (const char* name : {"x", "v", "out", "second"}) EXPECT_EQ(plan.host(name).data, plan.tensor(name).data) << name;
  EXPECT_NE(internal_error([&] { (void)plan.host("kept"); }).find("'kept' is neither"), std::string::npos);
  EXPECT_NE(internal_error([&] { (void)plan.host("nosuch"); }).find("'nosuch'"), std::string::npos);
}

TEST(Plan, WorkspaceCanBeShared) {
  CopyingBackend backend;
  DeviceBlock shared(backend, 1 << 20);
  size_t asked = 0;
  const PlanOptions options{.expand = {}, .workspace = [&](size_t bytes) { return asked = bytes, shared.data(); }};
  Recorder r;
  const Tensor x = r.input("x", DType::kF32, {40, 300});
  const Tensor w = r.input("w", DType::kBf16, {70, 300});
  r.add(Linear{.x = x, .w = w, .bias = {}, .out = r.output("out", DType::kF32, {40, 70})});
  const int before = backend.allocations;
  const Plan plan(backend, r, options);
  ASSERT_GT(plan.workspace_bytes(), 0U) << "choose an operation that needs some";
  EXPECT_EQ(asked, plan.workspace_bytes());
  EXPECT_EQ(backend.workspace, shared.data());
  EXPECT_EQ(backend.allocations, before + 1) << "only the arena";
}

TEST(Plan, PiecesAreSumsOfTheirOperations) {
  Plan plan(cpu(), small_forward());
  const size_t ends[] = {2, 3};
  double us[2] = {-1, -1};
  ASSERT_TRUE(plan.run_pieces(ends, us).is_ok());
  EXPECT_GE(us[0], 0);
  EXPECT_GE(us[1], 0);
  EXPECT_FALSE(plan.device_us().has_value()) << "the host has no clock of its own";
  FakeBackend failing;
  Plan broken(failing, small_forward());
  EXPECT_EQ(broken.run_pieces(ends, us).code(), StatusCode::kDevice);
}

TEST(Plan, TimesHaveOneEntryAnOperation) {
  Plan plan(cpu(), small_forward());
  OpTimes times;
  ASSERT_TRUE(plan.run(&times).is_ok());
  EXPECT_EQ(times.start_us.size(), plan.ops().size());
  EXPECT_EQ(times.duration_us.size(), plan.ops().size());
}

TEST(Plan, EmptyForwardIsFine) {
  Plan plan(cpu(), Recorder());
  EXPECT_EQ(plan.arena_bytes(), 0U);
  EXPECT_TRUE(plan.run().is_ok());
}

TEST(Registry, NamesAndRefusals) {
  EXPECT_EQ(make_backend("")->name(), "cpu");
  try {
    make_backend("abacus");
    ADD_FAILURE() << "an unknown backend was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadUse);
    EXPECT_NE(std::string(error.what()).find("abacus"), std::string::npos);
  }
}

}  // namespace
}  // namespace tendon::test
