#include <map>
#include <string>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "trace/read.h"
#include "trace/render.h"
#include "trace_file.h"

namespace tendon::trace::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Summary summary_of(const PyTorchTrace& writer, const SummaryOptions& options = {}) {
  return summarize(read_trace(TempFile(writer.text()).path()), options);
}

TEST(Summary, AddsUpKernelsGapsAndLaunches) {
  PyTorchTrace writer;
  writer.kernel("a", "[1,1,1]", 10);
  writer.kernel("b", "[1,1,1]", 20, "aten::other", "[[1]]", 5);    // 5 µs of nothing in front
  writer.kernel("a", "[1,1,1]", 30, "aten::other", "[[1]]", 0.5);  // too short to be listed
  // Overlaps all of it on another stream, and counts once in the busy time.
  writer.event(
      R"({"ph":"X","cat":"cuda_runtime","name":"cudaGraphLaunch","pid":7,"tid":7,"ts":5316512345678.0,"dur":3,"args":{}})");
  const Summary s = summary_of(writer);
  EXPECT_EQ(s.kernels, 3);
  EXPECT_NEAR(s.kernel_us, 60, 1e-9);
  EXPECT_NEAR(s.span_us, 65.5, 1e-9);
  EXPECT_NEAR(s.busy_us, 60, 1e-9);
  EXPECT_NEAR(s.gap_us, 5.5, 1e-9);
  EXPECT_EQ(s.gap_count, 1);
  EXPECT_NEAR(s.utilisation(), 60 / 65.5, 1e-9);
  ASSERT_EQ(s.gaps.size(), 1U);
  EXPECT_EQ(s.gaps[0].after, "a");
  EXPECT_EQ(s.gaps[0].before, "b");
  EXPECT_EQ(s.launches, 3);
  EXPECT_EQ(s.graph_launches, 1);
  EXPECT_EQ(s.by_time[0].name, "a");
  EXPECT_NEAR(s.by_time[0].us, 40, 1e-9);
  EXPECT_NEAR(s.by_time[0].longest_us, 30, 1e-9);
  EXPECT_EQ(s.by_count[0].count, 2);
}

TEST(Summary, CountsWhatOverlapsOnceAsBusy) {
  PyTorchTrace writer;
  writer.kernel("a", "[1,1,1]", 10);
  writer.event(
      R"({"ph":"X","cat":"kernel","name":"other_stream","pid":0,"tid":13,"ts":5316512346680.0,"dur":16,"args":{"stream":13}})");
  const Summary s = summary_of(writer);
  EXPECT_NEAR(s.kernel_us, 26, 1e-9);
  EXPECT_NEAR(s.busy_us, 18, 1e-9);
  EXPECT_NEAR(s.utilisation(), 1, 1e-9);
}

TEST(Summary, TimesStagesAndSteps) {
  PyTorchTrace writer;
  for (int call = 0; call < 2; ++call) add_call(writer);
  const Summary s = summary_of(writer);
  ASSERT_EQ(s.stages.size(), 3U);
  EXPECT_NEAR(s.stages[0].us, 2 * (27 * 8 + 12), 1e-6);
  EXPECT_NEAR(s.stages[1].us, 2 * 18 * 12, 1e-6);
  EXPECT_NEAR(s.stages[2].us, 2 * 3 * (18 * 4 + 2), 1e-6);
  EXPECT_NEAR(s.stages[2].span_us, s.stages[2].us, 1e-6);  // without gaps
  ASSERT_EQ(s.denoise_steps.size(), 3U);
  EXPECT_NEAR(s.denoise_steps[1].us, 2 * (18 * 4 + 2), 4.1);  // what stands between steps counts to one of them
}

TEST(Summary, RatesProductsByShape) {
  PyTorchTrace writer;
  writer.kernel("nvjet_a", "[1,1,1]", 50, "aten::mm", "[[1000,2000],[2000,500]]");
  writer.kernel("nvjet_a", "[1,1,1]", 30, "aten::mm", "[[1000,2000],[2000,500]]");
  writer.kernel("splitKreduce_kernel", "[1,1,1]", 20);
  const Summary s = summary_of(writer, {.peak_tflops = 100, .layers = {}});
  ASSERT_EQ(s.products.size(), 1U);
  EXPECT_EQ(s.products[0].shape, "1000x500x2000");
  EXPECT_EQ(s.products[0].count, 2);
  EXPECT_NEAR(s.products[0].tflops(), 2 * 2e9 / 80e-6 * 1e-12, 1e-9);
  EXPECT_THAT(render(s, Format::kMarkdown), HasSubstr("| 50.0 |"));  // of the peak
}

TEST(Summary, OfARealProfileAgreesWithTheStopwatch) {
  const Summary s =
      summarize(read_trace(TENDON_TEST_DATA "/traces/torch_cpu_tiny.json.gz"), {.top = 100, .layers = {}});
  // What make_torch_trace.py printed when it recorded the file: time between the stages, in ms.
  const std::pair<const char*, double> measured[] = {{"vision", 5.931}, {"prefix", 12.594}, {"denoise", 14.835}};
  ASSERT_EQ(s.stages.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(s.stages[i].name, measured[i].first);
    EXPECT_NEAR(s.stages[i].span_us * 1e-3 / measured[i].second, 1, 0.03);
  }
  int64_t products = 0;
  for (const ProductRow& row : s.products) products += row.count;
  EXPECT_EQ(products, 27 * 4 + 18 * 4 + 2 * 18 * 4 + 2 + 2 * 2);  // none counted twice
}

// Two calls of π0 on an H200, recorded by `bench/baselines/torch_pi0.py --mode M --profile` (torch 2.11.0), with what
// CUDA events in the same calls said, in ms.
TEST(Summary, OfProfilesOfACardAgreesWithItsEvents) {
  struct Recorded {
    const char* file;
    double vision, prefix, denoise;
  };
  for (const Recorded& recorded : {Recorded{"torch_h200_compiled.json.gz", 2.561, 5.616, 13.654},
                                   Recorded{"torch_h200_eager.json.gz", 2.684, 9.685, 249.041}}) {
    SCOPED_TRACE(recorded.file);
    const Summary s = summarize(read_trace(std::string(TENDON_TEST_DATA "/traces/") + recorded.file), {});
    std::map<std::string, double> span_ms;
    for (const StageRow& row : s.stages) span_ms[row.name] = row.span_us * 1e-3;
    EXPECT_NEAR(span_ms["vision"] / recorded.vision, 1, 0.03);
    EXPECT_NEAR(span_ms["prefix"] / recorded.prefix, 1, 0.03);
    EXPECT_NEAR(span_ms["denoise"] / recorded.denoise, 1, 0.03);
  }
}

TEST(Report, WritesJsonThatAgreesWithTheSummary) {
  PyTorchTrace writer;
  add_call(writer);
  const Summary s = summary_of(writer);
  const json report = json::parse(render(s, Format::kJson));
  EXPECT_EQ(report["schema"], kReportSchema);
  EXPECT_EQ(report["totals"]["kernels"], s.kernels);
  EXPECT_EQ(report["totals"]["steps"], 3);
  EXPECT_EQ(report["stages"][0]["stage"], "vision");
  EXPECT_NEAR(report["stages"][0]["time_ms"], s.stages[0].us * 1e-3, 1e-12);
  EXPECT_EQ(report["stages_remarks"].size(), 1U);
  EXPECT_EQ(report["classes"][0]["name"], "GEMM");
  EXPECT_TRUE(report["products"].empty());
}

TEST(Report, ShowsOnlyWhatIsAskedFor) {
  PyTorchTrace writer;
  add_call(writer);
  const Summary s = summary_of(writer);
  EXPECT_EQ(json::parse(render(s, Format::kJson, By::kOp)).contains("stages"), false);
  EXPECT_EQ(json::parse(render(s, Format::kJson, By::kStage)).contains("by_time"), false);
  EXPECT_EQ(json::parse(render(s, Format::kJson, By::kKernel)).contains("by_time"), true);
}

TEST(Report, QuotesAndEscapesNames) {
  PyTorchTrace writer;
  writer.kernel("void f<a, b>(int*)|x", "[1,1,1]", 1);
  const Summary s = summary_of(writer);
  EXPECT_THAT(render(s, Format::kCsv, By::kKernel), HasSubstr("\"void f<a, b>(int*)|x\",other,1,"));
  EXPECT_THAT(render(s, Format::kMarkdown, By::kKernel), HasSubstr("\\|x"));
}

TEST(Report, SaysThatStagesAreUnknown) {
  PyTorchTrace writer;
  writer.kernel("a", "[1,1,1]", 1);
  EXPECT_THAT(render(summary_of(writer), Format::kMarkdown), HasSubstr("The stages are unknown."));
}

TEST(Report, ComparesTwoTraces) {
  PyTorchTrace a;
  PyTorchTrace b;
  add_call(a);
  add_call(b, {.steps = 5});
  const json report = json::parse(render_difference(summary_of(a), summary_of(b), Format::kJson));
  const json& largest = report["rows"][0];
  EXPECT_EQ(largest["stage"], "denoise");
  EXPECT_NEAR(largest["ratio"], 5.0 / 3, 1e-6);
  EXPECT_EQ(largest["count_b"].get<int>() - largest["count_a"].get<int>(), 36);
  double difference = 0;
  for (const json& row : report["rows"]) difference += row["difference_ms"].get<double>();
  EXPECT_NEAR(difference, 2 * 74e-3, 1e-9);
}

TEST(Report, OfATraceWithoutEventsSaysSo) {
  const Summary s = summarize(read_trace(TempFile(R"({"traceEvents":[]})").path()), {});
  EXPECT_THAT(render(s, Format::kMarkdown), HasSubstr("nothing to count"));
  EXPECT_EQ(json::parse(render(s, Format::kJson))["totals"]["kernels"], 0);
}

}  // namespace
}  // namespace tendon::trace::test
