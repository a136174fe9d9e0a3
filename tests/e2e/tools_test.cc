// The commands that measure and explain, as a user meets them: report, doctor.
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

}  // namespace
}  // namespace tendon::test
