// The commands that measure and explain, as a user meets them: report, doctor, estimates and sweeps of bench.
#include "command.h"

namespace tendon::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kTorchTrace = (data_dir() / "traces/torch_cpu_tiny.json.gz").string();

TEST(Report, TellsTheStagesOfAPyTorchTrace) {
  const json report = run_json({"report", kTorchTrace, "--format", "json"});
  EXPECT_EQ(report["totals"]["tool"], "PyTorch profiler");
  EXPECT_EQ(report["totals"]["calls"], 1);
  EXPECT_EQ(report["totals"]["steps"], 2);
  EXPECT_EQ(report["stages"].size(), 3U);
  const Result text = tendon({"report", kTorchTrace, "--by", "stage"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("| vision |"));
}

TEST(Report, ComparesATraceWithItself) {
  const json report = run_json({"report", "--diff", kTorchTrace, kTorchTrace, "--format", "json"});
  for (const json& row : report["rows"]) EXPECT_EQ(row["difference_ms"], 0.0) << row;
  EXPECT_EQ(report["rows"].size(), 30U);
}

TEST(Report, WritesToAFile) {
  const TempDir temp;
  const std::string out = (temp.path() / "report.csv").string();
  const Result result = tendon({"report", kTorchTrace, "--format", "csv", "--out", out, "--by", "op"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(read_text(out), HasSubstr("classes\nname,count,total_ms"));
}

TEST(Report, RefusesWhatItCannotRead) {
  const TempDir temp;
  const std::string other = (temp.path() / "other.json").string();
  write_text(other, R"({"weights": [1, 2]})");
  const std::string broken = (temp.path() / "broken.json").string();
  write_text(broken, "{\"traceEvents\": [\n{\"ph\": \"X\" \"ts\"");
  expect_refused({"report", other}, 3, {other, "no trace", "weights"});
  expect_refused({"report", broken}, 3, {broken, "byte 33", "line 2"});
  expect_refused({"report", "/nonexistent.json"}, 3, {"/nonexistent.json"});
  expect_refused({"report"}, 2, {"files"});
  expect_refused({"report", kTorchTrace, kTorchTrace}, 2, {"2 trace files", "--diff"});
  expect_refused({"report", kTorchTrace, "--diff"}, 2, {"--diff"});
  expect_refused({"report", kTorchTrace, "--format", "xml"}, 2, {"--format"});
}

TEST(Doctor, ExitsWithOneWhenSomethingIsWrongAndChangesNothing) {
  const TempDir temp;
  const std::string root = temp.path() / "root";
  std::filesystem::create_directories(root + "/sys/kernel/mm/transparent_hugepage");
  const std::string setting = root + "/sys/kernel/mm/transparent_hugepage/enabled";
  write_text(setting, "always [madvise] never\n");
  EXPECT_EQ(tendon({"doctor", "--root", root}).code, 0);

  write_text(setting, "always madvise [never]\n");
  const Result text = tendon({"doctor", "--root", root});
  EXPECT_EQ(text.code, 1);
  for (const char* part : {"wrong   transparent huge pages: never", "why: ", "do:  ", "1 wrong"}) {
    EXPECT_THAT(text.out, HasSubstr(part));
  }
  EXPECT_EQ(read_text(setting), "always madvise [never]\n");
  const json parsed = json::parse(tendon({"doctor", "--root", root, "--json"}).out);
  EXPECT_EQ(parsed["schema"], 1);
  EXPECT_EQ(parsed["wrong"], 1);
  for (const json& finding : parsed["findings"]) {
    if (finding["severity"] == "wrong") {
      EXPECT_NE(finding["remedy"], "");
    }
  }
}

TEST(Doctor, TakesCardsFromAFile) {
  const TempDir temp;
  const std::string cards = temp.path() / "cards.json";
  write_text(cards, R"({"cards": [{"name": "X", "processes": 2}]})");
  const Result result = tendon({"doctor", "--root", temp.path().string(), "--cards", cards});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("GPU 0 X: other processes: 2 compute on it"));
  expect_refused({"doctor", "--cards", "/nonexistent.json"}, 3, {"/nonexistent.json"});
}

const Args kEstimate = {"bench", "--checkpoint", "synthetic:pi0", "--horizon", "10", "--json", "-", "--estimate"};

Args estimate_of(const std::string& card) {
  Args args = kEstimate;
  args.push_back(card);
  return args;
}

TEST(Estimate, GivesTheMeasuredLimitOfTheStandardWorkloadOnAnH100) {
  const json h100 = run_json(estimate_of("h100"));
  EXPECT_TRUE(h100["measured_limits"]);
  EXPECT_EQ(h100["prefix_rows"], 788);
  EXPECT_NEAR(h100["attainable_ms"], 6.82, 0.01);  // bench/results/2026-11-28-h100-expert/gpu_check.md
  double sum = 0;
  for (const json& stage : h100["stages"]) sum += stage["attainable_ms"].get<double>();
  EXPECT_NEAR(sum, h100["attainable_ms"], 1e-9);
  EXPECT_EQ(h100["stages"][1]["bound_by"], "arithmetic");
  EXPECT_EQ(h100["stages"][2]["bound_by"], "weights");
}

TEST(Estimate, KnowsTheCardsOfTheTable) {
  const std::map<std::string, bool> measured = {{"H200", true},    {"B200", false},  {"4090", false},
                                                {"5090", false},   {"Thor", false},  {"MI300X", false},
                                                {"MI350X", false}, {"MI355X", false}};
  for (const auto& [name, limits_are_measured] : measured) {
    const json card = run_json({"bench", "--checkpoint", "synthetic:pi0-tiny", "--json", "-", "--estimate", name});
    EXPECT_EQ(card["measured_limits"], limits_are_measured) << name;
    EXPECT_GT(card["attainable_ms"], card["sheet_ms"]) << name;
    EXPECT_GT(card["sheet_ms"], 0) << name;
    EXPECT_NE(card["source"], "") << name;
    EXPECT_THAT(card["checked"], testing::AnyOf("vendor", "quoted", "derived")) << name;
  }
}

TEST(Estimate, RefusesOtherCardsAndPrecisions) {
  expect_refused(estimate_of("V100"), 2, {"V100", "MI300X"});
  Args f32 = estimate_of("H100");
  f32.insert(f32.end(), {"--precision", "f32"});
  expect_refused(f32, 2, {"bf16"});
}

const Args kSweep = {"bench", "--checkpoint", "synthetic:pi0-tiny", "--iters",    "7",        "--steps", "2", "--json",
                     "-",     "--sweep",      "batch=1,2",          "views=1..3", "horizon=5"};

Args swept(const Args& ranges) {
  Args args(kSweep.begin(), kSweep.end() - 3);
  args.insert(args.end(), ranges.begin(), ranges.end());
  return args;
}

TEST(Sweep, MeasuresEveryCombination) {
  const json result = run_json(kSweep);
  EXPECT_EQ(result["kind"], "sweep");
  EXPECT_EQ(result["schema"], 2);
  ASSERT_EQ(result["rows"].size(), 6U);
  std::vector<std::pair<int, int>> shapes;
  for (const json& row : result["rows"]) {
    SCOPED_TRACE(row.dump());
    shapes.emplace_back(row["batch"], row["views"]);
    EXPECT_EQ(row["horizon"], 5);
    EXPECT_EQ(row["calls"], 7);
    EXPECT_GT(row["p50_ms"], 0);
    EXPECT_LE(row["p50_low_ms"], row["p50_ms"]);
    EXPECT_GE(row["p50_high_ms"], row["p50_ms"]);
    EXPECT_GT(row["vision_ms"], 0);
    EXPECT_TRUE(row["j_per_call"].is_null() && row["idle_w"].is_null() && row["slowed_by"].is_null());
  }
  const std::vector<std::pair<int, int>> expected = {{1, 1}, {1, 2}, {1, 3}, {2, 1}, {2, 2}, {2, 3}};
  EXPECT_EQ(shapes, expected);
  const Result text = tendon({"bench", "--checkpoint", "synthetic:pi05-tiny", "--iters", "2", "--steps", "1", "--cold",
                              "--sweep", "precision=bf16,f32"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, testing::AllOf(HasSubstr("bf16"), HasSubstr("f32"), HasSubstr(" cold ")));
  EXPECT_THAT(text.out, testing::Not(HasSubstr(" warm ")));
  const json both = run_json({"bench", "--checkpoint", "synthetic:pi05-tiny", "--iters", "2", "--steps", "1", "--json",
                              "-", "--sweep", "caches=warm,cold"});
  ASSERT_EQ(both["rows"].size(), 2U);
  EXPECT_EQ(both["rows"][0]["caches"], "warm");
  EXPECT_EQ(both["rows"][1]["caches"], "cold");
}

TEST(Sweep, PassesOrFailsAgainstABaseline) {
  const TempDir temp;
  const std::string file = temp.path() / "baseline.json";
  json baseline = run_json(swept({"views=1"}));
  const auto against = [&](double scale) {
    json scaled = baseline;
    for (json& row : scaled["rows"]) {
      for (const char* field : {"p50_ms", "p50_low_ms", "p50_high_ms"}) row[field] = row[field].get<double>() * scale;
    }
    write_text(file, scaled.dump());
    Args args = swept({"views=1"});
    args.insert(args.end(), {"--baseline", file});
    return tendon(args);
  };
  const Result pass = against(1000);
  EXPECT_EQ(pass.code, 0) << pass.err;
  EXPECT_EQ(json::parse(pass.out)["rows"][0]["verdict"], "pass");
  const Result slower = against(1e-3);
  EXPECT_EQ(slower.code, 1) << slower.err;
  EXPECT_EQ(json::parse(slower.out)["rows"][0]["verdict"], "slower");

  const auto refused = [&](const std::string& text, const std::string& part) {
    write_text(file, text);
    Args args = swept({"views=1"});
    args.insert(args.end(), {"--baseline", file});
    expect_refused(args, 3, {file, part});
  };
  // A baseline whose rows do not say their caches: the file does.
  for (json& row : baseline["rows"]) row.erase("caches");
  baseline["schema"] = 1;
  baseline["caches"] = "cold";
  const Result none = against(1);
  EXPECT_EQ(none.code, 3) << none.out;
  EXPECT_THAT(none.err, HasSubstr("none of the rows"));
  baseline["caches"] = "warm";
  EXPECT_EQ(against(1000).code, 0);

  refused("{}", "no JSON that tendon bench --sweep wrote");
  refused(R"({"kind": "sweep", "schema": 99, "rows": []})", "schema 99");
  refused(R"({"kind": "sweep", "schema": 1, "rows": []})", "none of the rows");
  refused(R"({"kind": "sweep", "schema": 1, "rows": [{"batch": 1}]})", "damaged");
}

TEST(Sweep, RefusesRangesThatMakeNoSense) {
  for (const auto& [range, part] : std::vector<std::pair<std::string, std::string>>{{"batch=0", "'0'"},
                                                                                    {"batch=65", "64"},
                                                                                    {"views=1..4", "3"},
                                                                                    {"views=3..1", "3..1"},
                                                                                    {"batch=1,,2", "''"},
                                                                                    {"batch", "''"},
                                                                                    {"horizon=x", "'x'"},
                                                                                    {"precision=fp4", "fp4"},
                                                                                    {"caches=hot", "hot"},
                                                                                    {"colour=1", "colour"}}) {
    expect_refused(swept({range}), 2, {range, part});
  }
  expect_refused({"bench", "--checkpoint", "synthetic:pi0-tiny", "--baseline", "x.json"}, 2, {"--sweep"});
}

TEST(Buckets, ArePreparedAndListed) {
  const json bench = run_json({"bench", "--checkpoint", "synthetic:pi0-tiny", "--backend", "cpu", "--steps", "1",
                               "--iters", "1", "--prompt-tokens", "5", "--buckets", "3x5", "2x7x2", "--json", "-"});
  ASSERT_EQ(bench["buckets"].size(), 2U);
  EXPECT_EQ(bench["buckets"][0]["views"], 3);
  EXPECT_EQ(bench["buckets"][0]["tokens"], 5);
  EXPECT_EQ(bench["buckets"][1]["batch"], 2);
  EXPECT_GT(bench["seconds"]["prepared"], 0.0);
  EXPECT_GE(bench["seconds"]["start_to_ready"].get<double>(), bench["seconds"]["ready"].get<double>());
  const Result info =
      tendon({"info", "--checkpoint", "synthetic:pi0-tiny", "--backend", "cpu", "--steps", "1", "--buckets", "1x4x3"});
  EXPECT_EQ(info.code, 0) << info.err;
  EXPECT_THAT(info.out, HasSubstr("bucket     1 views × 4 tokens, batch 3"));
}

TEST(Buckets, RefuseWordsThatMakeNoSense) {
  for (const char* word :
       {"3", "3x", "x5", "3x5x", "3x5x1x1", "threex5", "4x5", "0x5", "3x0", "3x5x0", "3x5x65", "3x5y"}) {
    expect_refused({"bench", "--checkpoint", "synthetic:pi0-tiny", "--backend", "cpu", "--buckets", word}, 2, {word});
  }
  expect_refused({"bench", "--checkpoint", "synthetic:pi0-tiny", "--backend", "cpu", "--buckets", "3x5000"}, 2,
                 {"5000", "--max-tokens"});
}

TEST(Ladder, ClimbsOnAHostAndDrawsIt) {
  const TempDir temp;
  const std::string svg = (temp.path() / "ladder.svg").string();
  const json ladder = run_json({"ladder", "--checkpoint", "synthetic:pi0-tiny", "--backend", "cpu", "--steps", "1",
                                "--iters", "1", "--json", "-", "--svg", svg});
  EXPECT_EQ(ladder["kind"], "ladder");
  ASSERT_EQ(ladder["rungs"].size(), 9U);
  EXPECT_EQ(ladder["rungs"][0]["rung"], "eager");
  EXPECT_EQ(ladder["rungs"][0]["graph"], false);
  for (const json& rung : ladder["rungs"]) {
    EXPECT_GT(rung["p50_ms"], 0.0);
    EXPECT_LT(rung["relative"], 0.05);  // against f32
  }
  // The last rung but one is what is served.
  EXPECT_TRUE(ladder["rungs"][7]["graph"]);
  EXPECT_TRUE(ladder["rungs"][7]["gemm_table"]);
  EXPECT_TRUE(ladder["rungs"][7]["expand"].empty());
  EXPECT_TRUE(ladder["rungs"][7]["without"].empty());
  EXPECT_EQ(ladder["rungs"][7]["precision"], "bf16");
  EXPECT_EQ(ladder["rungs"][8]["precision"], "int8");
  EXPECT_GT(ladder["rungs"][8]["relative"], ladder["rungs"][7]["relative"].get<double>());
  EXPECT_THAT(read_text(svg), testing::AllOf(HasSubstr("<svg"), HasSubstr("persistent loop"), HasSubstr("</svg>")));
  expect_refused({"ladder", "--checkpoint", "synthetic:pi0-tiny", "--against", "f64"}, 2, {"--against"});
}

TEST(Expand, RefusesWhatIsNoFusedOperation) {
  expect_refused({"bench", "--checkpoint", "synthetic:pi0-tiny", "--backend", "cpu", "--expand", "linear"}, 2,
                 {"linear", "norm_qkv_rope"});
}

}  // namespace
}  // namespace tendon::test
