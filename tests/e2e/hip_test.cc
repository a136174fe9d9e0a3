// The HIP backend from end to end on the fake libamdhip64: the numbers of the CPU, graphs, memory, and what the command
// says when something is wrong with the card. LD_LIBRARY_PATH leads to the fake.
#include <filesystem>

#include "command.h"
#include "streamed.h"

namespace tendon::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

#ifdef TENDON_SANITIZED
constexpr int64_t kSteps = 1;  // they slow the simulated card down
#else
constexpr int64_t kSteps = 2;
#endif

std::vector<float> actions(const char* backend_name, const std::string& directory, DType precision,
                           std::vector<std::string>* warnings = nullptr) {
  BackendOptions options;
  options.log = [&](LogLevel level, const std::string& text) {
    if (level == LogLevel::kWarning && warnings != nullptr) warnings->push_back(text);
  };
  const auto backend = make_backend(backend_name, options);
  const LoadedModel model = load_tiny(data_dir() / directory);
  EngineOptions engine_options;
  engine_options.precision = precision;
  engine_options.steps = kSteps;
  Engine engine(*backend, model.config, model.weights, engine_options);
  return infer(engine, Request(model.config, 1));
}

// In lower precisions both round differently: the card may be no further from f32 than 1.5 times the CPU's distance, 3
// times with the three bits of e4m3.
TEST(Hip, GivesTheNumbersOfTheCpu) {
  for (const char* directory : {"tiny_pi0", "tiny_pi05"}) {
    const std::vector<float> exact = actions("cpu", directory, DType::kF32);
    std::vector<std::string> warnings;
    EXPECT_LE(max_abs_difference(actions("hip", directory, DType::kF32, &warnings), exact), 3e-5) << directory;
    for (const DType precision : {DType::kBf16, DType::kE4m3, DType::kI8}) {
      EXPECT_LE(max_abs_difference(actions("hip", directory, precision, &warnings), exact),
                (precision == DType::kE4m3 ? 3 : 1.5) * max_abs_difference(actions("cpu", directory, precision), exact))
          << directory << " " << precision_name(precision);
    }
    EXPECT_TRUE(warnings.empty()) << warnings[0];  // captured as one graph
  }
}

TEST(Hip, StreamsFramesOneAfterTheOther) {
  const auto backend = make_backend("hip");
  const LoadedModel model = load_tiny(data_dir() / "tiny_pi0");
  EngineOptions options;
  options.steps = kSteps;
  Engine engine(*backend, model.config, model.weights, options);
  const Chunks expected = plain_calls(engine, 1, 3);
  FrameStream stream = open_stream(engine);
  EXPECT_FALSE(stream.overlaps());
  expect_same_chunks(streamed(stream, engine, 1, 3), expected);
}

TEST(Hip, ChoosesItselfWhenThereIsACard) {
  EXPECT_EQ(make_backend("")->name(), "hip");
  const DeviceInfo info = make_backend("hip")->info();
  EXPECT_EQ(info.architecture, "gfx942");
  EXPECT_THAT(info.runtime, HasSubstr("libamdhip64.so.7"));
}

// --- the command, in processes of their own: the library is opened once
// -----------------------------------------------

Result on_fake(const char* fake, Args args, const Args& more) {
  setenv("TENDON_FAKE_HIP", fake, 1);
  args.insert(args.end(), {"--checkpoint", "synthetic:pi0-tiny", "--steps", "1", "--backend", "hip"});
  args.insert(args.end(), more.begin(), more.end());
  Result result = tendon(args);
  unsetenv("TENDON_FAKE_HIP");
  return result;
}
Result bench(const char* fake, const Args& more = {}) { return on_fake(fake, {"bench", "--iters", "1"}, more); }

TEST(HipCommand, RunsOnBothKindsOfCards) {
  for (const char* fake : {"gfx=942,shuffled", "gfx=950,reverse"}) {
    const Result result = bench(fake);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("fake AMD card"));
    EXPECT_THAT(result.err, Not(HasSubstr("warning")));
  }
}

TEST(HipCommand, TakesTheOptionsOfAllCards) {
  const Result whole = on_fake("gfx=942", {"info"}, {"--gemm-table", "none"});
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out, HasSubstr("gpu.few_rows"));
  const Result without = on_fake("gfx=942", {"info"}, {"--without", "few_rows"});
  EXPECT_EQ(without.code, 0) << without.err;
  EXPECT_THAT(without.out, Not(HasSubstr("gpu.few_rows")));
}

TEST(HipCommand, DeviceTroubleHasExitCodeFour) {
  const std::vector<std::pair<const char*, const char*>> cases = {{"count=0", "No AMD card is visible"},
                                                                  {"gfx=900", "gfx900; tendon needs gfx942"},
                                                                  {"gfx=990", "gfx942,gfx950 only"},
                                                                  {"allocation=1", "Not enough memory"},
                                                                  {"memory-kb=300", "Not enough memory"}};
  for (const auto& [fake, part] : cases) {
    const Result result = bench(fake);
    EXPECT_EQ(result.code, 4) << fake;
    EXPECT_THAT(result.err, HasSubstr(part)) << fake;
  }
  EXPECT_THAT(bench("", {"--device", "1"}).err, HasSubstr("no card 1"));
}

TEST(HipCommand, SaysOnceThatCaptureFailedAndGoesOn) {
  for (const char* fault : {"capture-node=3", "instantiate"}) {
    const Result result = bench(fault);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("ordered fault"), HasSubstr("same numbers"))) << fault;
  }
  EXPECT_THAT(bench("capture-begin", {"--no-graph"}).err, Not(HasSubstr("ordered fault")));
}

// Without the fake: no library at all, or the distribution's, which finds no card.
TEST(HipCommand, SaysThatThereIsNoCard) {
  if (std::filesystem::exists("/dev/kfd")) GTEST_SKIP() << "this machine has an AMD card";
  const std::string path = std::getenv("LD_LIBRARY_PATH");
  unsetenv("LD_LIBRARY_PATH");
  const Result result = bench("");
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.err, AnyOf(AllOf(HasSubstr("no usable AMD driver"), HasSubstr("libamdhip64")),
                                HasSubstr("No AMD card is visible to this program. Check rocminfo and "
                                          "HIP_VISIBLE_DEVICES, or choose --backend cpu.")));
  std::cout << result.err;
}

// A library that has not all functions is none.
TEST(HipCommand, NamesAFunctionThatIsMissing) {
  const TempDir temp;
  std::filesystem::copy_file(TENDON_WRONG_LIBRARY, temp.path() / "libamdhip64.so.7");
  const std::string path = std::getenv("LD_LIBRARY_PATH");
  setenv("LD_LIBRARY_PATH", temp.path().c_str(), 1);
  const Result result = bench("");
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.err, HasSubstr("libamdhip64.so.7 has no function hip"));
}

}  // namespace
}  // namespace tendon::test
