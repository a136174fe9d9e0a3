// tendon trace: the file follows the trace-event format, and says what was measured.
#include "../../cli/call_trace.h"
#include "command.h"
#include "trace/read.h"
#include "trace/summary.h"

namespace tendon::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = DeviceActivity::Kind;

// What the viewers need of every event (the Trace Event Format): a known phase, a name, numbers for process, thread and
// time, lengths that are not negative, numbers as counter values; spans of one thread apart or within each other.
void expect_trace_events(const json& file) {
  ASSERT_TRUE(file.contains("traceEvents"));
  std::map<std::pair<int, int>, std::vector<std::pair<int64_t, int64_t>>> spans;  // in ns
  for (const json& event : file["traceEvents"]) {
    SCOPED_TRACE(event.dump());
    ASSERT_TRUE(event["ph"].is_string() && event["name"].is_string());
    ASSERT_TRUE(event["pid"].is_number_integer() && event["tid"].is_number_integer());
    EXPECT_NE(event["pid"], event["tid"]);  // Perfetto takes that thread for the main one and shows it first
    const std::string phase = event["ph"];
    ASSERT_THAT(phase, testing::AnyOf("X", "M", "C"));
    if (phase == "M") {
      EXPECT_TRUE(event["args"].contains("name") || event["args"].contains("sort_index"));
      continue;
    }
    ASSERT_TRUE(event["ts"].is_number());
    if (phase == "C") {
      for (const json& value : event["args"]) EXPECT_TRUE(value.is_number());
      continue;
    }
    ASSERT_TRUE(event["dur"].is_number() && event["cat"].is_string());
    EXPECT_GE(event["dur"].get<double>(), 0);
    const auto ns = [&](const char* key) { return std::llround(event[key].get<double>() * 1e3); };
    spans[{event["pid"], event["tid"]}].emplace_back(ns("ts"), ns("ts") + ns("dur"));
  }
  for (auto& [thread, list] : spans) {
    std::ranges::sort(list, [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<int64_t> open;  // ends
    for (const auto& [begin, end] : list) {
      while (!open.empty() && open.back() <= begin + 1) open.pop_back();  // times are rounded to ns
      if (!open.empty()) {
        EXPECT_LE(end, open.back() + 1) << "thread " << thread.first << "/" << thread.second;
      }
      open.push_back(end);
    }
  }
}

TEST(Trace, OfTheCpuFollowsTheFormatAndAddsUp) {
  const TempDir temp;
  const std::string out = (temp.path() / "call.json").string();
  const Result result = tendon({"trace", "--checkpoint", "synthetic:pi0-tiny", "--steps", "3", "--out", out});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("perfetto"));
  const json file = json::parse(read_text(out));
  expect_trace_events(file);
  EXPECT_EQ(file["otherData"]["tool"], "tendon");
  EXPECT_THAT(file["otherData"]["kernels"], HasSubstr("host computes"));

  double ops_us = 0;
  double run_us = 0;
  double stages_us = 0;
  std::vector<std::string> phases;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const double us = event["dur"];
    if (event["cat"] == "op") {
      ops_us += us;
      for (const char* key : {"op", "stage", "shape", "kernel", "flops", "read_bytes", "gb_per_s"}) {
        EXPECT_TRUE(event["args"].contains(key)) << key;
      }
    }
    if (event["cat"] == "stage" && event["name"].get<std::string>().find('.') == std::string::npos) stages_us += us;
    if (event["cat"] != "host") continue;
    phases.push_back(event["name"]);
    if (event["name"] == "run") run_us = us;
  }
  EXPECT_THAT(phases, ElementsAre("check inputs", "find plan", "fill inputs", "run", "read actions", "check actions"));
  EXPECT_LE(ops_us, run_us);
  EXPECT_GT(ops_us, 0.5 * run_us);
  EXPECT_NEAR(stages_us / ops_us, 1, 0.02);

  const json report = run_json({"report", out, "--format", "json"});
  EXPECT_EQ(report["totals"]["tool"], "tendon");
  EXPECT_EQ(report["totals"]["steps"], 3);
  EXPECT_NEAR(report["totals"]["kernel_ms"].get<double>(), ops_us * 1e-3, 1e-6);
  ASSERT_EQ(report["stages"].size(), 3U);
  EXPECT_EQ(report["denoise_steps"].size(), 3U);
  EXPECT_FALSE(report["products"].empty());
}

TEST(Trace, IsGzippedWhenItsNameSaysSo) {
  const TempDir temp;
  const std::string out = (temp.path() / "call.json.gz").string();
  ASSERT_EQ(tendon({"trace", "--checkpoint", "synthetic:pi05-tiny", "--steps", "1", "--out", out}).code, 0);
  EXPECT_EQ(read_text(out).substr(0, 2), "\x1f\x8b");
  EXPECT_EQ(run_json({"report", out, "--format", "json"})["totals"]["steps"], 1);
}

TEST(Trace, RefusesBadUse) {
  expect_refused({"trace", "--checkpoint", "synthetic:pi0-tiny"}, 2, {"--out"});
  expect_refused({"trace", "--checkpoint", "synthetic:pi0-tiny", "--out", "/nonexistent/x.json"}, 3,
                 {"/nonexistent/x.json"});
}

// --- what becomes of a card's records, which no card is needed for -------------------------------------------------

DeviceActivity kernel(const std::string& name, double start, double us, int64_t op = -1) {
  return {.kind = Kind::kKernel, .name = name, .start_us = start, .duration_us = us, .grid = "[1,1,1]", .op = op};
}

TEST(CallTrace, KernelsOfAGraphTakeTheOperationsOfTheSameKernelsLaunchedOneByOne) {
  const std::vector<DeviceActivity> direct = {kernel("a", 0, 1, 0), kernel("b", 5, 1, 1), kernel("b", 9, 1, 1)};
  std::vector<DeviceActivity> replayed = {kernel("a", 0, 1), kernel("b", 1, 1), kernel("b", 2, 1)};
  replayed.insert(replayed.begin(), {.kind = Kind::kCopy, .name = "copy", .start_us = -3, .duration_us = 1});
  ASSERT_TRUE(cli::assign_ops(direct, replayed));
  EXPECT_EQ(replayed[0].op, -1);
  EXPECT_EQ(replayed[1].op, 0);
  EXPECT_EQ(replayed[3].op, 1);
  std::vector<DeviceActivity> other = {kernel("a", 0, 1), kernel("c", 1, 1), kernel("b", 2, 1)};
  EXPECT_FALSE(cli::assign_ops(direct, other));
  EXPECT_EQ(other[0].op, -1);
  other.pop_back();
  EXPECT_FALSE(cli::assign_ops(direct, other));
}

TEST(CallTrace, OperationsEndWhereTheNextBegins) {
  // Operation 0 has two kernels, 1 none, 2 overlaps 0, 3 none behind all.
  const OpTimes times = cli::op_times_of({kernel("a", 1, 2, 0), kernel("a", 3, 4, 0), kernel("b", 5, 4, 2)}, 4);
  EXPECT_THAT(times.start_us, ElementsAre(1, 5, 5, 0));
  EXPECT_THAT(times.duration_us, ElementsAre(4, 0, 4, 0));
}

TEST(CallTrace, OfACardHasRowsOfKernelsCopiesAndCalls) {
  const auto backend = make_backend("cpu");
  const LoadedModel model = load_tiny(data_dir() / "tiny_pi0");
  EngineOptions options;
  options.steps = 1;
  Engine engine(*backend, model.config, model.weights, options);
  infer(engine, Request(model.config, 1));
  const size_t ops = engine.plan().ops().size();

  // Two kernels an operation, launched so that each begins before the one in front has ended.
  cli::CallTrace call;
  call.device = "card";
  call.kernel_names.assign(ops, "kernel");
  call.activities.push_back({.kind = Kind::kApi, .name = "cudaGraphLaunch", .start_us = 0, .duration_us = 5});
  call.activities.push_back(
      {.kind = Kind::kCopy, .name = "copy host → device", .start_us = 6, .duration_us = 2, .bytes = 99});
  double at = 10;
  for (size_t i = 0; i < ops; ++i, at += 10) {
    call.activities.push_back(kernel("first", at, 6, static_cast<int64_t>(i)));
    call.activities.push_back(kernel("second", at + 5, 5.5, static_cast<int64_t>(i)));
  }
  call.ops = cli::op_times_of(call.activities, ops);
  call.counters = {{"power W", 1, 300}};
  const TempDir temp;
  const std::string out = (temp.path() / "card.json").string();
  cli::write_call_trace(out, call, engine.plan(), {.bf16_flops_per_s = 1e15, .read_bytes_per_s = 1e12});
  const json file = json::parse(read_text(out));
  expect_trace_events(file);
  EXPECT_TRUE(std::ranges::any_of(file["traceEvents"], [](const json& event) {
    return event["name"] == "thread_name" && event["args"]["name"] == "kernels that overlap";
  }));
  EXPECT_TRUE(std::ranges::any_of(file["traceEvents"], [](const json& event) {
    return event["ph"] == "X" && event["cat"] == "op" && event["args"].value("share_of_limit", 0.0) > 0;
  }));

  const trace::Summary s = trace::summarize(trace::read_trace(out), {});
  EXPECT_EQ(s.kind, trace::WorkKind::kKernels);
  EXPECT_EQ(s.kernels, static_cast<int64_t>(2 * ops));
  EXPECT_EQ(s.graph_launches, 1);
  EXPECT_EQ(s.launches, 0);
  EXPECT_EQ(s.steps, 1);
  ASSERT_EQ(s.stages.size(), 3U);
  EXPECT_NEAR(s.span_us, 10.0 * static_cast<double>(ops) + 0.5, 1e-6);
  EXPECT_NEAR(s.busy_us, s.span_us, 1e-6);
  double flops = 0;
  for (const trace::ProductRow& row : s.products) flops += row.flops;
  EXPECT_GT(flops, 0);
}

}  // namespace
}  // namespace tendon::test
