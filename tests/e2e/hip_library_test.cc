// hipBLASLt behind the HIP backend, played by the fake libhipblaslt: its products in whole models, its names in GEMM
// tables, and what is said when it is not there or does not work.
#include "command.h"

namespace tendon::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// The command with the fake libhipblaslt beside the fake libamdhip64; `fault`: one that the former knows.
Result with_library(const Args& args, const char* fault = "") {
  const Variable path("LD_LIBRARY_PATH", std::string(std::getenv("LD_LIBRARY_PATH")) + ":" + TENDON_FAKE_HIPBLASLT_DIR);
  const Variable ordered("TENDON_FAKE_HIPBLASLT", fault);
  Args all = args;
  all.insert(all.end(), {"--backend", "hip", "--checkpoint", "synthetic:pi0-tiny", "--steps", "1"});
  return tendon(all);
}

TEST(HipLibrary, RunsTheProductsThatItTakes) {
  const Result info = with_library({"info"});
  EXPECT_EQ(info.code, 0) << info.err;
  EXPECT_THAT(info.out, AllOf(HasSubstr("hipBLASLt 1.1.2 (libhipblaslt.so.1)"), HasSubstr("(hipblaslt, unmeasured")));
  for (const char* precision : {"f32", "bf16"}) {
    const Result check = with_library({"check", "--precision", precision});
    EXPECT_EQ(check.code, 0) << check.out << check.err;
    EXPECT_THAT(check.err, Not(HasSubstr("same numbers")));  // captured, though it allocates at its first use
  }
}

TEST(HipLibrary, IsLeftOutByPortableKernels) {
  const Result info = with_library({"info", "--kernels", "portable"});
  EXPECT_EQ(info.code, 0) << info.err;
  EXPECT_THAT(info.out, AllOf(HasSubstr("tendon's own kernels"), Not(HasSubstr("hipblaslt"))));
}

TEST(HipLibrary, IsNotNeeded) {
  const Result info = tendon({"info", "--backend", "hip", "--checkpoint", "synthetic:pi0-tiny", "--steps", "1"});
  EXPECT_EQ(info.code, 0) << info.err;
  EXPECT_THAT(info.out, AllOf(HasSubstr("tendon's own kernels"), Not(HasSubstr("(hipblaslt"))));
}

TEST(HipLibrary, WithoutAnAlgorithmTendonsOwnKernelsRun) {
  const Result check = with_library({"check", "--precision", "f32"}, "no-algorithm");
  EXPECT_EQ(check.code, 0) << check.out << check.err;
}

TEST(HipLibrary, ThatDoesNotWorkIsTroubleWithTheDevice) {
  const std::pair<const char*, const char*> cases[] = {
      {"no-create", "hipblasLtCreate failed with hipBLAS status 6"},
      {"old", "libhipblaslt.so.1 is hipBLASLt 0.5.0 (libhipblaslt.so.1), older than ROCm 6.0"},
      {"no-matmul", "hipblasLtMatmul failed with hipBLAS status 5"}};
  for (const auto& [fault, words] : cases) {
    const Result check = with_library({"check", "--precision", "f32"}, fault);
    EXPECT_EQ(check.code, 4) << fault;
    EXPECT_THAT(check.err, HasSubstr(words)) << fault;
  }
}

// A table names its algorithms; the name holds the library's version, since another one means something else by it.
TEST(HipLibrary, TakesTheAlgorithmOfATable) {
  const TempDir temp;
  const std::string table = temp.path() / "card.csv";
  const auto with_kernel = [&](const std::string& kernel) {
    write_text(table, "m,n,k,x,w,out,epilogue,kernel,us,date,commit\n12,48,48,bf16,bf16,bf16,bias," + kernel +
                          ",1.0,2026-01-31,abc\n12,64,48,bf16,bf16,bf16,bias," + kernel + ",1.0,2026-01-31,abc\n");
  };
  with_kernel("hipblaslt:100102.1b001b");
  EXPECT_THAT(with_library({"info", "--gemm-table", table}).out, HasSubstr("(hipblaslt:100102.1b001b)"));
  EXPECT_EQ(with_library({"check", "--gemm-table", table}).code, 0);
  with_kernel("hipblaslt:90000.1b001b");
  EXPECT_EQ(with_library({"check", "--gemm-table", table}).code, 0);  // the library's own choice instead
}

// Tiles for gfx950's shared memory are not taken on gfx942, whatever a table says.
TEST(HipTiles, FitTheCardsSharedMemory) {
  const TempDir temp;
  const std::string table = temp.path() / "card.csv";
  write_text(table,
             "m,n,k,x,w,out,epilogue,kernel,us,date,commit\n"
             "12,64,48,bf16,bf16,bf16,bias,own:256x256x64x2m32/1,1.0,2026-01-31,abc\n");
  const auto info = [&](const char* card) {
    const Variable fake("TENDON_FAKE_HIP", card);
    return tendon({"info", "--backend", "hip", "--checkpoint", "synthetic:pi0-tiny", "--gemm-table", table}).out;
  };
  EXPECT_THAT(info("gfx=950"), HasSubstr("(own:256x256x64x2m32/1)"));
  EXPECT_THAT(info("gfx=942"), Not(HasSubstr("256x256x64x2m32")));
}

// Products of codes run on the matrix units of both cards, by default and when a table says so; the tuner measures
// them.
TEST(HipTiles, MultiplyCodes) {
  const TempDir temp;
  const std::string table = temp.path() / "card.csv";
  for (const auto& [precision, type] : {std::pair("fp8", "e4m3"), std::pair("int8", "i8")}) {
    for (const char* card : {"gfx=942", "gfx=950"}) {
      const Variable fake("TENDON_FAKE_HIP", card);
      const Args model = {"--backend", "hip", "--checkpoint", "synthetic:pi0-tiny", "--precision", precision};
      const auto run = [&](Args args, const Args& more) {
        args.insert(args.end(), model.begin(), model.end());
        args.insert(args.end(), more.begin(), more.end());
        return tendon(args);
      };
      EXPECT_THAT(run({"info"}, {"--gemm-table", "none"}).out, HasSubstr("x64x128x2/")) << precision << card;
      write_text(table, fmt::format("m,n,k,x,w,out,epilogue,kernel,us,date,commit\n"
                                    "24,64,128,{0},{0},bf16,residual,own:128x128x128x1m32/1,1.0,2026-01-31,abc\n",
                                    type));
      EXPECT_THAT(run({"info"}, {"--gemm-table", table}).out, HasSubstr("own:128x128x128x1m32/1")) << precision << card;
    }
  }
}

}  // namespace
}  // namespace tendon::test
