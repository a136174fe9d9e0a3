// Which kernel a product gets, and the tuner on the simulated card.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "backend/gemm/tuner.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/sim/sim_backend.h"
#include "backend/sim/sim_library.h"

namespace tendon::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A linear of these sizes: weights, and planned buffers.
Op linear(int64_t rows, DType dtype = DType::kBf16, Activation activation = Activation::kNone) {
  alignas(256) static float weights[32 * 64];
  Linear a{.x = Tensor(dtype, {rows, 64}),
           .w = Tensor(dtype, {32, 64}, weights),
           .bias = {},
           .out = Tensor(dtype, {rows, 32})};
  a.x.value = 0, a.out.value = 1;
  a.activation = activation;
  return {a, "test"};
}

std::unique_ptr<Backend> backend(const std::string& rows, bool portable = false) {
  const auto path =
      std::filesystem::temp_directory_path() / ("tendon_choice_test_" + std::to_string(getpid()) + ".csv");
  std::ofstream(path) << "m,n,k,x,w,out,epilogue,kernel,us,date,commit\n" << rows;
  BackendOptions options;
  options.gemm_table = path.string();
  options.portable_kernels = portable;
  auto made = sim::make_sim_backend({}, options);
  std::filesystem::remove(path);
  return made;
}

TEST(Choice, TakesTheRowThenItsNeighbourThenTheLibrary) {
  const auto b = backend(
      "100,32,64,bf16,bf16,bf16,none,own:32x64x64x4/1,1.0,2026-01-31,abc\n"
      "10,32,64,bf16,bf16,bf16,none,sim_library:loops,1.0,2026-01-31,abc\n");
  EXPECT_EQ(b->kernel_name(linear(100)), "gemm (own:32x64x64x4/1)");
  EXPECT_EQ(b->kernel_name(linear(90)), "gemm (own:32x64x64x4/1, measured with other rows)");
  EXPECT_EQ(b->kernel_name(linear(10)), "gemm (sim_library:loops)");
  EXPECT_EQ(b->kernel_name(linear(1000)), "gemm (sim_library, unmeasured: not in this card's GEMM table)");
  EXPECT_EQ(sim::make_sim_backend({}, {})->kernel_name(linear(10)),
            "gemm (sim_library, unmeasured: this card has no GEMM table)");
}

// Kernels of one architecture, played by our own plain products. They take bf16 only, and do not rotate.
class SpecialTiles final : public gpu::SpecialProducts {
 public:
  std::string_view name() const override { return "special"; }
  bool exists(std::string_view kernel) const override { return kernel == "a" || kernel == "b"; }
  std::vector<std::string> kernels(const gpu::Product& p) const override {
    return takes(p, "a") ? std::vector<std::string>{"a", "b"} : std::vector<std::string>{};
  }
  bool takes(const gpu::Product& p, std::string_view kernel) const override {
    return exists(kernel) && p.x.dtype == DType::kBf16 && !p.rope.defined();
  }
  gpu::Launch prepare(const gpu::Product& p, std::string_view kernel) const override {
    if (!takes(p, kernel)) return {};
    return [p](gpu::Stream stream) { gpu::launch_product(p, {gpu::plain_tile(), 1}, nullptr, stream); };
  }
};

std::unique_ptr<Backend> special_backend(const std::string& rows) {
  return gpu::make_gpu_backend(
      {.name = "sim",
       .runtime = sim::make_sim_runtime({}),
       .library = sim::make_sim_library(),
       .special = std::make_unique<SpecialTiles>(),
       .table = gemm::Table::parse("m,n,k,x,w,out,epilogue,kernel,us,date,commit\n" + rows, "table.csv")});
}

TEST(Choice, KernelsOfOneArchitectureRunWhatTheTableGivesThem) {
  const auto b = special_backend(
      "100,32,64,bf16,bf16,bf16,none,special:b,1.0,2026-01-31,abc\n"
      "100,32,64,f32,f32,f32,none,special:b,1.0,2026-01-31,abc\n");
  EXPECT_EQ(b->kernel_name(linear(100)), "gemm (special:b)");
  EXPECT_EQ(b->kernel_name(linear(60)), "gemm (special:b, measured with other rows)");
  // Not what they do not take, nor what was not measured.
  EXPECT_THAT(b->kernel_name(linear(100, DType::kF32)), StartsWith("gemm (sim_library,"));
  EXPECT_THAT(b->kernel_name(linear(1000)), StartsWith("gemm (sim_library,"));
  // On a card that does not have them, the row is passed over.
  EXPECT_THAT(backend("100,32,64,bf16,bf16,bf16,none,special:b,1.0,2026-01-31,abc\n")->kernel_name(linear(100)),
              StartsWith("gemm (sim_library,"));
  try {
    special_backend("100,32,64,bf16,bf16,bf16,none,special:c,1.0,2026-01-31,abc\n");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_THAT(error.what(), HasSubstr("table.csv, line 2: there is no tile 'special:c'"));
  }
}

TEST(Choice, TheTunerTriesKernelsOfOneArchitecture) {
  const auto b = special_backend("");
  const auto trial = b->tune_target()->make_trial({.m = 5, .n = 24, .k = 72, .epilogue = "bias+gelu"});
  const std::vector<std::string> kernels = trial->candidates();
  EXPECT_THAT(kernels, testing::Contains("special:a"));
  EXPECT_THAT(kernels, testing::Contains("special:b"));
  EXPECT_LE(trial->error("special:a"), 1.0);
  EXPECT_TRUE(std::isinf(trial->error("special:c")));
  const auto f32 =
      b->tune_target()->make_trial({.m = 5, .n = 24, .k = 72, .x = DType::kF32, .w = DType::kF32, .out = DType::kF32});
  EXPECT_THAT(f32->candidates(), testing::Each(testing::Not(StartsWith("special:"))));
}

TEST(Choice, WhatDoesNotRotateLeavesItToAnotherKernel) {
  const auto b = special_backend("");
  const auto trial = b->tune_target()->make_trial({.m = 5, .n = 768, .k = 72, .epilogue = "rope"});
  const std::vector<std::string> kernels = trial->candidates();
  for (const char* kernel : {"sim_library:loops", "special:a", "special:b"}) {
    ASSERT_THAT(kernels, testing::Contains(kernel));
  }
  for (const std::string& kernel : {kernels.front(), std::string("special:a"), kernels.back()}) {
    EXPECT_LE(trial->error(kernel), 1.0) << kernel;
  }
  const auto f32 = b->tune_target()->make_trial(
      {.m = 5, .n = 768, .k = 72, .x = DType::kF32, .w = DType::kF32, .out = DType::kF32, .epilogue = "rope"});
  EXPECT_LE(f32->error(f32->candidates().front()), 1.0);
  try {
    (void)b->tune_target()->make_trial({.m = 5, .n = 700, .k = 72, .epilogue = "rope"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("5x700x72"));
  }
}

TEST(Choice, LeavesTheLibraryWhatItCanDoExactly) {
  const auto b = sim::make_sim_backend({}, {});
  EXPECT_THAT(b->kernel_name(linear(80, DType::kBf16, Activation::kSilu)), StartsWith("gemm (own:"));
  EXPECT_THAT(b->kernel_name(linear(80, DType::kF32, Activation::kSilu)), StartsWith("gemm (sim_library"));
}

TEST(Choice, FewRowsWithF32WeightsHaveAKernelOfTheirOwn) {
  const auto b = sim::make_sim_backend({}, {});
  EXPECT_EQ(b->kernel_name(linear(64, DType::kF32)), "gpu.few_rows_linear");
  EXPECT_THAT(b->kernel_name(linear(65, DType::kF32)), StartsWith("gemm (sim_library"));
  Op planned = linear(64, DType::kF32);  // weights that an operation writes must not be read early
  std::get<Linear>(planned.args).w.value = 2;
  EXPECT_THAT(b->kernel_name(planned), StartsWith("gemm (sim_library"));
}

TEST(Choice, PortableMeansNoLibraryAndNoTable) {
  const auto b = backend("100,32,64,bf16,bf16,bf16,none,sim_library:loops,1.0,2026-01-31,abc\n", true);
  EXPECT_THAT(b->kernel_name(linear(100)), StartsWith("gemm (own:"));
}

TEST(Choice, ARowThatDoesNotFitIsPassedOver) {
  // A tile of tensor cores for f32, and a library that is not here.
  const auto b = backend(
      "100,32,64,f32,f32,f32,none,own:32x64x64x4/1,1.0,2026-01-31,abc\n"
      "100,32,64,bf16,bf16,bf16,none,cublaslt:1.2,1.0,2026-01-31,abc\n");
  EXPECT_THAT(b->kernel_name(linear(100, DType::kF32)), StartsWith("gemm (sim_library,"));
  EXPECT_THAT(b->kernel_name(linear(100)), StartsWith("gemm (sim_library,"));
}

TEST(Choice, NamesTheLineOfATileThatDoesNotExist) {
  try {
    backend("\n100,32,64,bf16,bf16,bf16,none,own:33x64x64x4/1,1.0,2026-01-31,abc\n");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_THAT(error.what(), HasSubstr(".csv, line 3: there is no tile 'own:33x64x64x4/1'"));
  }
}

TEST(Choice, BuiltInTablesNameTilesThatExist) {
  for (const gemm::BuiltInTable* entry = gemm::kBuiltInTables; entry->file != nullptr; ++entry) {
    const std::string text = entry->text;
    EXPECT_NO_THROW(backend(text.substr(text.find('\n') + 1))) << entry->file;
  }
}

TEST(Choice, TheTunersKernelsAgreeForEveryEpilogue) {
  const auto b = sim::make_sim_backend({}, {});
  gemm::TuneTarget* const target = b->tune_target();
  ASSERT_NE(target, nullptr);
  EXPECT_EQ(gemm::to_string(*target->product_of(linear(10))), "10x32x64 bf16 bf16 bf16 none");
  std::vector<gemm::Desc> descs;
  for (const char* epilogue : {"none", "bias+gelu", "bias+silu", "bias+table", "bias+residual", "gated", "gelu_mul"})
    descs.push_back({.m = 5, .n = 24, .k = 72, .epilogue = epilogue});
  descs.push_back({.m = 5, .n = 24, .k = 72, .x = DType::kBf16, .w = DType::kF32, .out = DType::kF32});
  for (const gemm::Desc& desc : descs) {
    const std::unique_ptr<gemm::Trial> trial = target->make_trial(desc);
    const std::vector<std::string> kernels = trial->candidates();
    for (const std::string& kernel : kernels) EXPECT_LE(trial->error(kernel), 1.0) << gemm::to_string(desc) << kernel;
    const bool library_can = desc.epilogue != "bias+silu" && desc.epilogue != "bias+table";
    EXPECT_EQ(kernels.front() == "sim_library:loops", library_can) << gemm::to_string(desc);
    EXPECT_THAT(kernels.back(), StartsWith("own:64x64x16x1/"));
    EXPECT_TRUE(std::isinf(trial->error("own:1x1x1x1/1")));
    EXPECT_TRUE(std::isinf(trial->error("sim_library:magic")));
  }
  EXPECT_GE(target->make_trial(descs[0])->time_us("own:64x64x16x1/1", 1e9, false), 0.0);
}

}  // namespace
}  // namespace tendon::test
