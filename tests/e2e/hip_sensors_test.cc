// Sensors and traces of the HIP backend: AMD SMI is played by the fake libamd_smi, whose card draws 250 W.
#include "backend/hip/amd_smi.h"
#include "command.h"

namespace tendon::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string with_amd_smi() { return std::string(std::getenv("LD_LIBRARY_PATH")) + ":" + TENDON_FAKE_AMD_SMI_DIR; }

Result bench(const std::string& json, const char* fault = "") {
  const Variable ordered("TENDON_FAKE_AMD_SMI", fault);
  return tendon({"bench", "--backend", "hip", "--checkpoint", "synthetic:pi0-tiny", "--steps", "1", "--iters", "1",
                 "--power-seconds", "1", "--json", json});
}

TEST(HipSensors, GiveJoulesACall) {
  const TempDir temp;
  const std::string file = temp.path() / "bench.json";
  const Variable path("LD_LIBRARY_PATH", with_amd_smi());
  const Result result = bench(file);
  ASSERT_EQ(result.code, 0) << result.err;
  const auto energy = nlohmann::json::parse(read_text(file)).at("energy");
  EXPECT_NEAR(energy.at("mean_w").get<double>(), 250, 10);
  EXPECT_GT(energy.at("j_per_call").get<double>(), 0);
  EXPECT_EQ(energy.at("core_mhz"), 2100);
  EXPECT_EQ(energy.at("memory_mhz"), 1300);
  EXPECT_TRUE(energy.at("missing").is_null()) << energy;
}

TEST(HipSensors, SayWhatIsMissing) {
  const TempDir temp;
  const std::string file = temp.path() / "bench.json";
  EXPECT_THAT(bench(file).out, HasSubstr("energy: the library AMD SMI (libamd_smi.so) cannot be opened"));
  const Variable path("LD_LIBRARY_PATH", with_amd_smi());
  const std::pair<const char*, const char*> cases[] = {
      {"no-start", "energy: AMD SMI does not start: status 2"},
      {"no-card", "energy: AMD SMI does not know the card at 0000:c1:00.0: status 31"},
      {"no-energy", "energy: AMD SMI reads no energy counter: status 2"}};
  for (const auto& [fault, words] : cases) {
    const Result result = bench(file, fault);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(words));
  }
}

// Without a tracer of kernels: every operation by itself, timed by events of the card.
TEST(HipTrace, HasTheTimesOfOperations) {
  const TempDir temp;
  const std::string file = temp.path() / "trace.json";
  const Result traced =
      tendon({"trace", "--backend", "hip", "--checkpoint", "synthetic:pi0-tiny", "--steps", "1", "--out", file});
  ASSERT_EQ(traced.code, 0) << traced.err;
  EXPECT_THAT(traced.out + traced.err, HasSubstr("rocprofiler-sdk"));
  const Result report = tendon({"report", file, "--by", "op"});
  EXPECT_EQ(report.code, 0) << report.err;
  EXPECT_THAT(report.out, AllOf(HasSubstr("attention"), HasSubstr("events between them")));
}

}  // namespace
}  // namespace tendon::test
