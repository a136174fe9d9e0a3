// The tendon command as a user meets it: exit codes, messages, files and JSON.
#include <cmath>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "command.h"
#include "engine/noise.h"
#include "model/weights/folds.h"
#include "policy/files/npy.h"
#include "policy/preset/presets.h"
#include "tiny.h"

namespace tendon::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

void expect_fields(const json& object, const std::vector<std::string>& pointers) {
  for (const std::string& pointer : pointers) {
    EXPECT_TRUE(object.contains(json::json_pointer(pointer)))
        << pointer << " is not in " << object.dump().substr(0, 400);
  }
}

const std::string kPi0 = (data_dir() / "tiny_pi0").string();
const std::string kPi05 = (data_dir() / "tiny_pi05").string();
const std::string kPng = (data_dir() / "policy/images/rgb.png").string();
const std::string kJpeg = (data_dir() / "policy/images/rgb.jpg").string();
const std::string kState8 = "0.1,-0.2,0.3,0.4,-0.5,0.6,0.7,0.8";

// `list` with `option` and its value replaced, or added, or (empty value) removed.
Args with(Args list, const std::string& option, const std::string& value) {
  const auto found = std::find(list.begin(), list.end(), option);
  if (found == list.end()) {
    if (!value.empty()) list.insert(list.end(), {option, value});
  } else if (value.empty()) {
    list.erase(found, found + 2);
  } else {
    *(found + 1) = value;
  }
  return list;
}
Args plus(Args list, const Args& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

json stats_json(int width) {
  json entry;
  for (int i = 0; i < width; ++i) {
    entry["mean"].push_back(0.1 * i);
    entry["std"].push_back(0.5 + 0.1 * i);
    entry["q01"].push_back(-1 - 0.1 * i);
    entry["q99"].push_back(1 + 0.2 * i);
  }
  return {{"norm_stats", {{"state", entry}, {"actions", entry}}}};
}

class Cli : public testing::Test {
 protected:
  Cli() { write_text(stats(), stats_json(8).dump()); }

  fs::path path(const std::string& name) const { return temp_.path() / name; }
  std::string stats() const { return path("norm_stats.json"); }
  Args droid(const std::string& checkpoint = kPi0) const {
    return {"run",
            "--checkpoint",
            checkpoint,
            "--preset",
            checkpoint == kPi05 ? "pi05_droid" : "pi0_droid",
            "--image",
            "base=" + kPng,
            "--image",
            "left=" + kJpeg,
            "--state",
            kState8,
            "--tokens",
            "2,107,255,108",
            "--norm-stats",
            stats(),
            "--threads",
            "1"};
  }
  // A copy of the tiny π0 checkpoint after `change`.
  template <class F>
  std::string changed(const std::string& name, const F& change, const std::string& base = kPi0) const {
    StoredMap weights = read_weights(base);
    change(weights);
    write_checkpoint(path(name), weights, base);
    return path(name);
  }

  TempDir temp_;
};

// --- use ------------------------------------------------------------------------------------------------------------

TEST_F(Cli, HelpAndVersion) {
  for (const char* const command : {"info", "synth", "run", "bench", "check"}) {
    const Result result = tendon({command, "--help"});
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_THAT(result.out, HasSubstr("--json")) << command;
    EXPECT_EQ(result.err, "") << command;
    const Result all = tendon({"--help"});
    EXPECT_EQ(all.code, 0);
    EXPECT_THAT(all.out, HasSubstr(command));
  }
  EXPECT_EQ(tendon({"--version"}).code, 0);
}

TEST_F(Cli, BadUseIsExplainedWithExitCode2) {
  const Args run = droid();
  const Args info = {"info", "--checkpoint", kPi0};
  const Args bench = {"bench", "--checkpoint", kPi0, "--iters", "1"};
  std::vector<std::string> presets;
  for (const Preset& preset : all_presets()) presets.emplace_back(preset.name);
  std::vector<std::string> folds{"nonsense"};
  for (const FoldInfo& fold : kFolds) folds.emplace_back(fold.name);
  struct Case {
    Args args;
    std::vector<std::string> message;
  };
  const std::vector<Case> cases = {
      {{}, {"subcommand"}},
      {{"--nonsense"}, {"nonsense"}},
      {{"nonsense"}, {"nonsense"}},
      {{"run"}, {"required"}},
      {{"bench"}, {"--checkpoint", "required"}},
      {{"synth"}, {"--out", "required"}},
      {plus(run, {"--nonsense"}), {"--nonsense"}},
      {with(run, "--preset", ""), {"--preset"}},
      {with(run, "--preset", "pi0_aloa"), presets},
      {with(run, "--preset", "pi0_aloa"), {"pi0_aloa", "Did you mean 'pi0_aloha'"}},
      {with(run, "--checkpoint", "synthetic:nonsense"), {"synthetic:nonsense", "synthetic:pi0-tiny", "synthetic:pi05"}},
      {with(run, "--checkpoint", "synthetic:"), {"synthetic:pi0"}},
      {plus(info, {"--fold-off", "nonsense"}), folds},
      {plus(info, {"--steps", "0"}), {"steps", "0"}},
      {plus(info, {"--steps", "-3"}), {"steps", "-3"}},
      {plus(info, {"--steps", "1001"}), {"steps", "1001"}},
      {plus(info, {"--steps", "ten"}), {"--steps", "ten"}},
      {plus(info, {"--precision", "fp4"}), {"--precision", "fp4", "bf16"}},
      {plus(info, {"--precision", "int8", "--codes", "tower"}), {"--codes", "tower", "vision"}},
      {plus(info, {"--codes", "vision"}), {"--codes vision", "bf16", "--precision int8"}},
      {plus(info, {"--precision", "int8", "--codes", "expert", "expert-weights"}), {"--codes", "expert-weights"}},
      {plus(bench, {"--codes", "vision", "--sweep", "precision=bf16,f32"}), {"--codes vision", "bf16, f32"}},
      {{"ladder", "--checkpoint", "synthetic:pi0-tiny", "--precision", "f32", "--codes", "vision"}, {"--codes", "f32"}},
      {plus(info, {"--variant", "pi1"}), {"--variant", "pi1", "pi05"}},
      {plus(info, {"--rope-freq", "f8"}), {"--rope-freq", "exact"}},
      {plus(info, {"--time-rule", "x"}), {"--time-rule", "lerobot"}},
      {plus(info, {"--backend", "nonsense"}), {"nonsense", "cpu"}},
      {plus(info, {"--threads", "-1"}), {"threads"}},
      {plus(bench, {"--views", "4"}), {"--views"}},
      {plus(bench, {"--views", "0"}), {"--views"}},
      {plus(bench, {"--batch", "0"}), {"--batch"}},
      {plus(bench, {"--prompt-tokens", "0"}), {"--prompt-tokens"}},
      {with(bench, "--iters", "-1"), {"--iters"}},
      {plus(bench, {"--streaming", "--cold"}), {"--streaming", "--cold"}},
      {{"check", "--checkpoint", kPi0, "--against", "none"}, {"none", "--repeat-identical"}},
      {{"synth", "--model", "pi2", "--out", path("x")}, {"--model", "pi2"}},
      {{"synth", "--size", "huge", "--out", path("x")}, {"--size", "huge"}},
      {{"synth", "--size", "tiny", "--action-dim", "0", "--out", path("x")}, {"--action-dim"}},
      {{"synth", "--size", "tiny", "--image-size", "225", "--out", path("x")}, {"--image-size", "225", "14"}},
      {plus(run, {"--out", path("actions.txt")}), {"actions.txt", ".npy", ".json"}},
      {with(run, "--image", kPng), {"CAMERA=FILE"}},
      {with(run, "--image", "cam9=" + kPng), {"cam9", "base", "left"}},
      {plus(run, {"--image", "right=" + kPng}), {"right", "pi0_droid"}},
      {plus(run, {"--image", "base=" + kPng}), {"twice"}},
      {with(run, "--state", ""), {"--state", "8"}},
      {with(run, "--tokens", ""), {"--tokens", "--tokenizer"}},
      {plus(run, {"--seed", "-1"}), {"--seed"}},
      {plus(run, {"--seed", "soon"}), {"--seed"}},
  };
  for (const Case& one : cases) expect_refused(one.args, 2, one.message);
  EXPECT_FALSE(fs::exists(path("x"))) << "nothing may be written";
}

TEST_F(Cli, ABackendWithoutItsCardOrItsBuildIsADeviceError) {
  for (const auto& [backend, node] : {std::pair("cuda", "/dev/nvidia0"), std::pair("hip", "/dev/kfd")}) {
    if (fs::exists(node)) continue;
    expect_refused(plus(droid(), {"--backend", backend}), 4, {"--backend", "cpu"});
    expect_refused({"info", "--backend", backend}, 4, {"--backend", "cpu"});
  }
}

// --- input ----------------------------------------------------------------------------------------------------------

TEST_F(Cli, BadInputIsNamedWithExitCode3) {
  const Args run = droid();
  const std::string cut_image = path("cut.png");
  write_text(cut_image, read_text(kPng).substr(0, 100));
  write_text(path("text.jpg"), "this is no picture");
  write_text(path("empty.png"), "");
  write_text(path("state.json"), "[1, 2, 3]");
  write_text(path("bad.npy"), "not numpy");
  write_text(path("cut.npy"), std::string("\x93NUMPY\x01\x00\xff\xff{", 11));
  write_text(path("broken.json"), "{\"norm_stats\": {");
  json short_stats = stats_json(8);
  short_stats["norm_stats"]["actions"]["std"].erase(3);
  write_text(path("ragged.json"), short_stats.dump());
  json wide = stats_json(33);
  write_text(path("wide.json"), wide.dump());
  json half = stats_json(8);
  half["norm_stats"]["state"].erase("q01");
  half["norm_stats"]["state"].erase("mean");
  write_text(path("half.json"), half.dump());
  std::string nan = stats_json(8).dump();
  nan.replace(nan.find("\"mean\":[0.0"), 11, "\"mean\":[NaN");
  write_text(path("nan.json"), nan);
  const std::vector<float> noise(2 * 32, 0.5F);
  const std::vector<int64_t> shape{2, 32};
  write_npy(path("short.npy"), shape, std::span<const float>(noise));
  std::vector<float> nan_noise(10 * 32, 0.5F);
  nan_noise[100] = std::nanf("");
  const std::vector<int64_t> whole{10, 32};
  write_npy(path("nan.npy"), whole, std::span<const float>(nan_noise));

  struct Case {
    Args args;
    std::vector<std::string> message;
  };
  const std::vector<Case> cases = {
      {with(run, "--image", "base=" + cut_image), {cut_image, "PNG"}},
      {with(run, "--image", "base=" + path("text.jpg").string()), {"text.jpg", "JPEG"}},
      {with(run, "--image", "base=" + path("empty.png").string()), {"empty.png", "empty"}},
      {with(run, "--image", "base=" + path("absent.png").string()), {"absent.png"}},
      {with(run, "--image", "base=" + temp_.path().string()), {temp_.path().string()}},
      {with(run, "--state", "1,2,3"), {"3", "8"}},
      {with(run, "--state", path("state.json")), {"state.json", "3", "8"}},
      {with(run, "--state", path("absent.json")), {"absent.json"}},
      {with(run, "--state", "1,2,3,nan,5,6,7,8"), {"3", "nan"}},
      {with(run, "--state", "1,2,3,4,5,inf,7,8"), {"5", "inf"}},
      {with(run, "--state", "1,2,three,4,5,6,7,8"), {"three"}},
      {with(run, "--tokens", "2,512"), {"512"}},
      {with(run, "--tokens", "2,-4"), {"-4"}},
      {with(run, "--tokens", "2,1.5"), {"1.5"}},
      {with(run, "--tokens", path("absent.json")), {"absent.json"}},
      {with(run, "--norm-stats", ""), {kPi0, "--norm-stats", "--asset-id"}},
      {with(with(run, "--norm-stats", ""), "--asset-id", "droid"), {"droid", "--norm-stats"}},
      {with(run, "--norm-stats", path("absent.json")), {"absent.json"}},
      {with(run, "--norm-stats", path("broken.json")), {"broken.json"}},
      {with(run, "--norm-stats", path("ragged.json")), {"ragged.json", "actions", "std", "7", "8"}},
      {with(run, "--norm-stats", path("wide.json")), {"33", "32"}},
      {with(run, "--norm-stats", path("half.json")), {"half.json", "state.mean", "mean/std"}},
      {with(run, "--norm-stats", path("nan.json")), {"nan.json", "mean[0]", "NaN"}},
      {with(droid(kPi05), "--norm-stats", path("half.json")), {"half.json", "state.q01", "quantile"}},
      {with(run, "--noise", path("short.npy")), {"short.npy", "(2, 32)", "(10, 32)"}},
      {with(run, "--noise", path("nan.npy")), {"nan.npy", "100"}},
      {with(run, "--noise", path("bad.npy")), {"bad.npy"}},
      {with(run, "--noise", path("cut.npy")), {"cut.npy"}},
      {with(run, "--noise", path("absent.npy")), {"absent.npy"}},
      {with(run, "--preset", "pi05_droid"), {"pi05_droid", "pi05", "pi0"}},
      {plus(run, {"--variant", "pi05"}), {"pi0", "pi05"}},
      {with(run, "--horizon", "0"), {"horizon", "0"}},
      {with(run, "--horizon", "5000"), {"horizon", "5000"}},
      {with(run, "--tokenizer", path("absent.model")), {"absent.model"}},
      {with(run, "--tokenizer", kPng), {kPng}},
      {plus(with(run, "--tokens", "2,3,4,5,6,7,8"), {"--strict-prompt", "--max-tokens", "6"}), {"7", "6"}},
      {plus(run, {"--out", path("no/such/directory/a.json")}), {"no/such/directory"}},
      {plus(run, {"--out", path("no/such/directory/a.npy")}), {"no/such/directory"}},
  };
  for (const Case& one : cases) expect_refused(one.args, 3, one.message);
  // A camera that the robot needs.
  Args without = run;
  without.erase(without.begin() + 7, without.begin() + 9);
  expect_refused(without, 3, {"left_wrist_0_rgb", "observation/wrist_image_left", "given: base"});
}

TEST_F(Cli, BrokenCheckpointsAreNamedWithExitCode3) {
  const std::string k = "paligemma_with_expert.gemma_expert.model.layers.1.self_attn.k_proj.weight";
  const std::string whole = read_text(fs::path(kPi0) / "model.safetensors");
  const auto raw = [&](const std::string& name, const std::string& bytes) {
    write_text(path(name) / "model.safetensors", bytes);
    write_text(path(name) / "config.json", read_text(fs::path(kPi0) / "config.json"));
    return path(name).string();
  };
  fs::create_directories(path("empty"));
  std::string huge_header = whole;
  huge_header.replace(0, 8, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8);
  write_text(path("bad_config") / "model.safetensors", whole);
  write_text(path("bad_config") / "config.json", "{\"action_horizon\": ");
  write_text(path("claims") / "model.safetensors", whole);
  write_text(path("claims") / "config.json", "{\"pi05\": true}");
  struct Case {
    std::string checkpoint;
    std::vector<std::string> message;
  };
  const std::vector<Case> cases = {
      {path("absent"), {"absent", "no such file"}},
      {path("empty"), {"empty", "model.safetensors"}},
      {kPng, {"rgb.png", ".safetensors"}},
      {raw("truncated", whole.substr(0, whole.size() - 1000)), {"truncated"}},
      {raw("stub", whole.substr(0, 5)), {"stub"}},
      {raw("lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), {"lfs"}},
      {raw("huge", huge_header), {"huge"}},
      {path("bad_config"), {"config.json"}},
      {path("claims"), {"pi0", "pi05", "config.json"}},
      {changed("f64", [&](StoredMap& w) { w[k] = store(w[k].floats(), w[k].shape, DType::kF64); }), {k, "f64"}},
      {changed("unknown", [&](StoredMap& w) { w["surprise.weight"] = w[k]; }),
       {"1 unexpected", "surprise.weight", "Nothing was loaded"}},
      {changed("missing", [&](StoredMap& w) { w.erase(k); }), {"1 missing", k}},
      {changed("one_layer_less",
               [&](StoredMap& w) {
                 std::erase_if(w, [](const auto& item) {
                   return item.first.find("gemma_expert.model.layers.2.") != std::string::npos;
                 });
               }),
       {"3 layers", "expert 2"}},
      {changed("shape",
               [&](StoredMap& w) {
                 w[k].shape = {32, 16};
               }),
       {"1 of another shape", k, "[16, 32]", "[32, 16]"}},
      {changed("twice", [&](StoredMap& w) { w["model." + k] = w[k]; }), {k, "model." + k}},
  };
  for (const Case& one : cases) {
    expect_refused(with(droid(), "--checkpoint", one.checkpoint), 3, one.message);
    expect_refused({"info", "--checkpoint", one.checkpoint}, 3, one.message);
  }
  // One weight is NaN: the actions are never printed.
  const std::string nan = changed("nan", [&](StoredMap& w) {
    std::vector<float> values = w[k].floats();
    values[9] = std::nanf("");
    w[k] = store(values, w[k].shape, DType::kBf16);
  });
  expect_refused(plus(with(droid(), "--checkpoint", nan), {"--json"}), 3, {"non-finite action"});
  expect_refused({"bench", "--checkpoint", nan, "--iters", "1", "--threads", "1"}, 3, {"non-finite action"});
  expect_refused({"check", "--checkpoint", nan, "--threads", "1"}, 3, {"non-finite action"});
}

// --- the whole way --------------------------------------------------------------------------------------------------

TEST_F(Cli, SynthInfoRunBenchCheck) {
  for (const std::string model : {"pi0", "pi05"}) {
    SCOPED_TRACE(model);
    const std::string checkpoint = path(model);
    const json written = run_json({"synth", "--model", model, "--size", "tiny", "--out", checkpoint, "--json"});
    expect_fields(written, {"/directory", "/model", "/size", "/dtype", "/tensors", "/seconds"});
    EXPECT_EQ(written["model"], model);
    EXPECT_EQ(written["tensors"], read_weights(checkpoint).size());
    // The same weights as those made in memory.
    const json info = run_json({"info", "--checkpoint", checkpoint, "--json", "--threads", "1"});
    expect_fields(info, {"/version", "/device/backend", "/device/name", "/model/variant", "/model/action_dim",
                         "/model/horizon", "/precision", "/folds/0/name", "/folds/0/on", "/bucket/prefix_rows",
                         "/memory/weights_in_place_bytes", "/memory/arena_bytes", "/operations", "/tflop",
                         "/kernels/0/op", "/kernels/0/kernel", "/kernels/0/count", "/stored_dtypes"});
    EXPECT_EQ(info["model"]["variant"], model);
    EXPECT_THAT(info["stored_dtypes"].get<std::string>(), HasSubstr("bf16"));
    int64_t operations = 0;
    for (const json& kernel : info["kernels"]) operations += kernel["count"].get<int64_t>();
    EXPECT_EQ(info["operations"], operations);

    Args run = with(droid(), "--checkpoint", checkpoint);
    run = plus(with(run, "--preset", model + "_droid"), {"--json"});
    const json actions = run_json(run);
    expect_fields(actions, {"/preset", "/shape", "/units", "/actions", "/ms/preprocess", "/ms/model", "/ms/postprocess",
                            "/ms/stages/vision", "/ms/stages/prefix", "/ms/stages/denoise", "/seconds/load",
                            "/seconds/ready", "/peak_memory_bytes"});
    EXPECT_EQ(actions["units"], "robot");
    EXPECT_EQ(actions["shape"], json({model == "pi0" ? 10 : 15, 8}));
    ASSERT_EQ(actions["actions"].size(), actions["shape"][0]);
    for (const json& row : actions["actions"]) EXPECT_EQ(row.size(), 8U);
    EXPECT_EQ(actions["actions"], run_json(with(run, "--checkpoint", "synthetic:" + model + "-tiny"))["actions"]);

    const std::string report = path(model + "_bench.json");
    const std::string csv = path(model + "_bench.csv");
    const Result bench = tendon({"bench", "--checkpoint", checkpoint, "--iters", "2", "--threads", "1", "--json",
                                 report, "--csv", csv, "--batch", "2", "--views", "2"});
    EXPECT_EQ(bench.code, 0) << bench.err;
    EXPECT_THAT(bench.out, HasSubstr("p50"));
    const json measured = json::parse(read_text(report));
    expect_fields(measured, {"/schema",
                             "/version",
                             "/commit",
                             "/device/name",
                             "/checkpoint",
                             "/precision",
                             "/views",
                             "/prompt_tokens",
                             "/prefix_rows",
                             "/horizon",
                             "/steps",
                             "/batch",
                             "/calls",
                             "/wall_ms/p50",
                             "/wall_ms/p90",
                             "/wall_ms/p99",
                             "/wall_ms/max",
                             "/wall_ms/min",
                             "/device_ms",
                             "/first_call_ms",
                             "/hz",
                             "/samples_per_s",
                             "/floor/ms",
                             "/floor/missing",
                             "/energy/j_per_call",
                             "/energy/missing",
                             "/seconds/load",
                             "/seconds/tables",
                             "/seconds/weights",
                             "/seconds/weights_gb_per_s",
                             "/seconds/plan",
                             "/memory_bytes/arena",
                             "/memory_bytes/device_used",
                             "/stages/0/stage",
                             "/stages/0/gflop",
                             "/stages/0/weight_gb",
                             "/stage_ms/vision",
                             "/stage_ms/denoise",
                             "/ops/0/op",
                             "/ops/0/ms"});
    EXPECT_EQ(measured["schema"], 2);
    EXPECT_EQ(measured["calls"], 2);
    EXPECT_EQ(measured["batch"], 2);
    // A host has no clock of its own, no sensors and no measured limits: the fields are null, with a reason.
    EXPECT_TRUE(measured["device_ms"].is_null());
    EXPECT_TRUE(measured["floor"]["ms"].is_null());
    EXPECT_THAT(measured["floor"]["missing"].get<std::string>(), HasSubstr("measured"));
    EXPECT_THAT(measured["energy"]["missing"].get<std::string>(), HasSubstr("sensors"));
    EXPECT_EQ(measured["stages"].size(), 3U);
    EXPECT_GT(measured["stages"][1]["gflop"], 0);
    EXPECT_GT(measured["stages"][2]["weight_gb"], 0);
    EXPECT_LE(measured["wall_ms"]["min"], measured["wall_ms"]["p50"]);
    EXPECT_LE(measured["wall_ms"]["p50"], measured["wall_ms"]["max"]);
    const std::string table = read_text(csv);
    const std::string header = table.substr(0, table.find('\n'));
    const std::string row = table.substr(table.find('\n') + 1);
    EXPECT_EQ(std::ranges::count(header, ','), std::ranges::count(row, ',')) << table;
    EXPECT_EQ(std::ranges::count(table, '\n'), 2);

    for (const Args& more :
         {Args{}, Args{"--precision", "f32"}, Args{"--precision", "fp8"}, Args{"--precision", "int8"},
          Args{"--precision", "int8", "--codes", "vision", "prefix", "expert"},
          Args{"--precision", "int8", "--codes", "prefix", "expert-weights"},
          Args{"--precision", "fp8", "--codes", "vision", "expert"}, Args{"--batch", "2", "--views", "1"},
          Args{"--precision", "f32", "--fold-off", "state_token_once", "--fold-off", "time_tables"}}) {
      const json check = run_json(plus({"check", "--checkpoint", checkpoint, "--threads", "1", "--json"}, more));
      expect_fields(check, {"/ok", "/against", "/precision", "/rows/0/quantity", "/rows/0/max_abs", "/rows/0/relative",
                            "/rows/0/ok"});
      EXPECT_EQ(check["ok"], true);
      EXPECT_EQ(check["rows"].back()["quantity"], "actions");
      EXPECT_EQ(check["repeat"]["calls"], 0);
    }
    const json repeated = run_json({"check", "--checkpoint", checkpoint, "--threads", "1", "--json", "--against",
                                    "none", "--repeat-identical", "5"});
    EXPECT_EQ(repeated["ok"], true);
    EXPECT_EQ(repeated["repeat"]["calls"], 5);
    EXPECT_EQ(repeated["repeat"]["identical"], true);
    EXPECT_TRUE(repeated["rows"].empty());
    const Result text = tendon({"check", "--checkpoint", checkpoint, "--threads", "1"});
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("all within bounds"));
  }
}

TEST_F(Cli, InfoWithoutACheckpointDescribesTheBuild) {
  const json info = run_json({"info", "--json"});
  expect_fields(info, {"/version", "/commit", "/device/backend", "/device/threads_or_sms", "/presets"});
  EXPECT_EQ(info["presets"].size(), all_presets().size());
  EXPECT_THAT(tendon({"info"}).out, HasSubstr("pi0_aloha"));
  EXPECT_THAT(tendon({"info", "--checkpoint", kPi05}).out, HasSubstr("pi05"));
}

TEST_F(Cli, OutFilesEqualStandardOutput) {
  const std::string json_file = path("actions.json");
  const std::string npy_file = path("actions.npy");
  const json printed = run_json(plus(droid(), {"--json", "--out", json_file}));
  EXPECT_EQ(json::parse(read_text(json_file))["actions"], printed["actions"]);
  const Result table = tendon(plus(droid(), {"--out", npy_file}));
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("actions (10, 8), robot units"));
  const NpyArray array = read_npy(npy_file);
  EXPECT_EQ(array.shape, (std::vector<int64_t>{10, 8}));
  std::vector<double> flat;
  for (const json& row : printed["actions"]) {
    for (const json& value : row) flat.push_back(value.get<double>());
  }
  EXPECT_EQ(array.values, flat) << "the same doubles in text and file";
}

TEST_F(Cli, SeedsAndNoiseFiles) {
  const Args run = plus(droid(), {"--json"});
  const json first = run_json(run)["actions"];
  EXPECT_EQ(run_json(run)["actions"], first);
  EXPECT_EQ(run_json(with(run, "--seed", "0"))["actions"], first);
  EXPECT_NE(run_json(with(run, "--seed", "1"))["actions"], first);
  EXPECT_NE(run_json(with(run, "--seed", "18446744073709551615"))["actions"], first);
  std::vector<float> noise(10 * 32);
  fill_noise(0, 0, noise);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{10, 32}, {1, 10, 32}}) {
    write_npy(path("noise.npy"), shape, std::span<const float>(noise));
    EXPECT_EQ(run_json(with(run, "--noise", path("noise.npy")))["actions"], first);
  }
  const std::vector<double> wide(noise.begin(), noise.end());
  write_npy(path("noise.npy"), std::vector<int64_t>{10, 32}, std::span<const double>(wide));
  EXPECT_EQ(run_json(with(run, "--noise", path("noise.npy")))["actions"], first);
}

// Values that begin with a minus sign are values.
TEST_F(Cli, StateFromFileOrList) {
  const Args run = plus(droid(), {"--json"});
  const std::string values = "-0.1,0.2,-0.3,0.4,0.5,0.6,0.7,-0.8";
  const json inline_list = run_json(with(run, "--state", values))["actions"];
  write_text(path("state.json"), "[" + values + "]\n");
  write_text(path("state.csv"), values + "\n");
  EXPECT_EQ(run_json(with(run, "--state", path("state.json")))["actions"], inline_list);
  EXPECT_EQ(run_json(with(run, "--state", path("state.csv")))["actions"], inline_list);
  EXPECT_NE(run_json(run)["actions"], inline_list);
}

TEST_F(Cli, ALongPromptIsCutWithAWarning) {
  const Args run = plus(with(droid(), "--tokens", "2,3,4,5,6,7,8"), {"--json"});
  const Result whole = tendon(plus(run, {"--max-tokens", "7"}));
  EXPECT_EQ(whole.code, 0);
  EXPECT_THAT(whole.err, testing::Not(HasSubstr("cut")));
  const Result cut = tendon(plus(run, {"--max-tokens", "5"}));
  EXPECT_EQ(cut.code, 0);
  EXPECT_THAT(cut.err, HasSubstr("warning: the prompt has 7 tokens, more than the budget of 5"));
  EXPECT_EQ(json::parse(cut.out)["actions"], run_json(with(run, "--tokens", "2,3,4,5,6"))["actions"]);
}

TEST_F(Cli, AssetsOfTheCheckpointAreFoundAndChosen) {
  const std::string checkpoint = changed("assets", [](StoredMap&) {});
  const Args run = plus(with(with(droid(), "--checkpoint", checkpoint), "--norm-stats", ""), {"--json"});
  const json with_file = run_json(with(run, "--norm-stats", stats()))["actions"];
  write_text(path("assets") / "assets/one/norm_stats.json", stats_json(8).dump());
  const Result alone = tendon(run);
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_THAT(alone.err, HasSubstr("assets/one/norm_stats.json"));
  EXPECT_EQ(json::parse(alone.out)["actions"], with_file);
  write_text(path("assets") / "assets/lab/two/norm_stats.json", stats_json(7).dump());
  expect_refused(run, 3, {"several", "lab/two", "one", "--asset-id"});
  expect_refused(with(run, "--asset-id", "three"), 3, {"three", "lab/two", "one"});
  EXPECT_EQ(run_json(with(run, "--asset-id", "one"))["actions"], with_file);
  EXPECT_NE(run_json(with(run, "--asset-id", "lab/two"))["actions"], with_file);
  write_text(path("assets") / "assets/droid/norm_stats.json", stats_json(8).dump());  // the preset's
  EXPECT_EQ(run_json(run)["actions"], with_file);
}

// --- check ----------------------------------------------------------------------------------------------------------

// Attention logits so large that the rounding of bf16 decides which key wins: bf16 is then no approximation any more,
// and check must say so; in f32 the same weights are fine.
TEST_F(Cli, CheckFailsOutsideItsBounds) {
  const std::string sharp = changed("sharp", [](StoredMap& weights) {
    for (auto& [name, stored] : weights) {
      if (!name.ends_with("q_proj.weight")) continue;
      std::vector<float> values = stored.floats();
      for (float& value : values) value *= 200;
      stored = store(values, stored.shape, DType::kBf16);
    }
  });
  const Args check = {"check", "--checkpoint", sharp, "--threads", "1"};
  const Result failed = tendon(check);
  EXPECT_EQ(failed.code, 1) << failed.out << failed.err;
  EXPECT_THAT(failed.out, HasSubstr("OUT OF BOUNDS"));
  EXPECT_THAT(failed.out, HasSubstr("FAIL"));
  const Result machine = tendon(plus(check, {"--json"}));
  EXPECT_EQ(machine.code, 1);
  const json report = json::parse(machine.out);
  EXPECT_EQ(report["ok"], false);
  bool some_row_failed = false;
  for (const json& row : report["rows"]) some_row_failed = some_row_failed || row["ok"] == false;
  EXPECT_TRUE(some_row_failed);
  EXPECT_EQ(tendon(plus(check, {"--precision", "f32"})).code, 0);
}

TEST_F(Cli, CheckRefusesAReferenceThatDoesNotFit) {
  const Args check = {"check", "--checkpoint", kPi0, "--threads", "1", "--against"};
  expect_refused(plus(check, {path("absent.safetensors")}), 3, {"absent.safetensors"});
  expect_refused(plus(check, {kPng}), 3, {"rgb.png"});
  const std::string tiny = (data_dir() / "tiny_pi0/all_cams_n10.safetensors").string();
  expect_refused(plus(check, {tiny}), 3, {"all_cams_n10.safetensors", "golden"});
  const std::string full = (data_dir() / "full_pi0/golden.safetensors").string();
  expect_refused(plus(check, {full}), 3, {"golden.safetensors", "sizes"});
}

// --- other people's folders -----------------------------------------------------------------------------------------

// A LeRobot policy folder around the network whose output is known: names with an outer "model.", LeRobot's config with
// its own words and unknown ones, statistics in processor files. The answer is noise - bias in the robot's units.
TEST_F(Cli, LerobotFolder) {
  std::vector<float> bias(32);
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = 0.02F * static_cast<float>(i) - 0.1F;
  write_constant_checkpoint(path("plain"), kPi0, bias);
  StoredMap renamed;
  for (const auto& [name, stored] : read_weights(path("plain"))) renamed["model." + name] = stored;
  const fs::path folder = path("lerobot");
  write_weights(folder, renamed);
  json config = {{"type", "pi0"},
                 {"chunk_size", 10},
                 {"n_action_steps", 8},
                 {"max_state_dim", 32},
                 {"max_action_dim", 32},
                 {"num_inference_steps", 3},
                 {"tokenizer_max_length", 48},
                 {"normalization_mapping", {{"VISUAL", "IDENTITY"}, {"STATE", "MEAN_STD"}, {"ACTION", "MEAN_STD"}}},
                 {"input_features",
                  {{"observation.images.top", {{"type", "VISUAL"}, {"shape", {3, 224, 224}}}},
                   {"observation.state", {{"type", "STATE"}, {"shape", {8}}}}}},
                 {"output_features", {{"action", {{"type", "ACTION"}, {"shape", {8}}}}}},
                 {"field_of_next_year", 1}};
  const json tiny = json::parse(read_text(fs::path(kPi0) / "config.json"));
  config["vision"] = tiny["vision"];
  config["gemma"] = tiny["gemma"];
  write_text(folder / "config.json", config.dump(1));
  const auto processor = [](const char* step, const char* file) {
    return json{
        {"name", "p"},
        {"steps",
         {{{"registry_name", "rename_observations_processor"}, {"config", json::object()}},
          {{"registry_name", step},
           {"config",
            {{"eps", 1e-8}, {"norm_map", {{"VISUAL", "IDENTITY"}, {"STATE", "MEAN_STD"}, {"ACTION", "MEAN_STD"}}}}},
           {"state_file", file}}}}};
  };
  write_text(folder / "policy_preprocessor.json", processor("normalizer_processor", "pre.safetensors").dump());
  write_text(folder / "policy_postprocessor.json", processor("unnormalizer_processor", "post.safetensors").dump());
  const std::vector<float> mean = {0, 0.1F, 0.2F, 0.3F, 0.4F, 0.5F, 0.6F, 0.7F};
  const std::vector<float> std = {1, 0.5F, 2, 0.25F, 3, 0.75F, 1.5F, 4};
  for (const char* file : {"pre.safetensors", "post.safetensors"}) {
    const std::vector<SafetensorsSpec> specs = {{"observation.state.mean", DType::kF32, {8}},
                                                {"observation.state.std", DType::kF32, {8}},
                                                {"action.mean", DType::kF32, {8}},
                                                {"action.std", DType::kF32, {8}}};
    SafetensorsWriter writer(folder / file, specs);
    for (int i = 0; i < 2; ++i) {
      writer.append(std::span<const float>(mean));
      writer.append(std::span<const float>(std));
    }
    writer.finish();
  }

  const Args run = with(with(droid(), "--checkpoint", folder), "--norm-stats", "");
  const Result result = tendon(plus(run, {"--json"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("field_of_next_year"));
  EXPECT_THAT(result.err, HasSubstr("3 steps"));
  EXPECT_THAT(result.err, HasSubstr("post.safetensors"));
  const json reply = json::parse(result.out);
  EXPECT_EQ(reply["units"], "robot");
  ASSERT_EQ(reply["shape"], json({10, 8}));
  std::vector<float> noise(10 * 32);
  fill_noise(0, 0, noise);
  for (size_t row = 0; row < 10; ++row) {
    for (size_t dim = 0; dim < 8; ++dim) {
      const double raw = double{noise[row * 32 + dim]} - double{bias[dim]};
      EXPECT_NEAR(reply["actions"][row][dim].get<double>(), raw * double{std[dim]} + double{mean[dim]}, 1e-5);
    }
  }
  const json info = run_json({"info", "--checkpoint", folder, "--json"});
  EXPECT_EQ(info["model"]["horizon"], 10) << "chunk_size";
  EXPECT_EQ(info["model"]["max_token_len"], 48) << "tokenizer_max_length";

  fs::remove(folder / "post.safetensors");
  expect_refused(run, 3, {"post.safetensors", "missing"});
  config["use_relative_actions"] = true;
  write_text(folder / "config.json", config.dump(1));
  expect_refused(run, 3, {"use_relative_actions"});
}

// --- the demo -------------------------------------------------------------------------------------------------------

// What scripts/demo.sh runs on a machine with little memory.
TEST_F(Cli, TheDemoOnTheTinyModel) {
  const fs::path root = TENDON_SOURCE_DIR;
  const fs::path seen = root / "examples/observation";
  const std::string script = read_text(root / "scripts/demo.sh");
  const std::string tokens = "2,107,255,193,442,90,134";
  for (const std::string& part :
       {std::string("synthetic:pi0-tiny"), std::string("TENDON_PRESET:-pi0_aloha"),
        std::string("base=$observation/base.jpg"), std::string("left=$observation/left_wrist.jpg"),
        std::string("right=$observation/right_wrist.png"), std::string("--state \"$observation/state.json\""),
        tokens}) {
    EXPECT_THAT(script, HasSubstr(part)) << "keep this test and the script equal";
  }
  const Args demo = {"run",
                     "--checkpoint",
                     "synthetic:pi0-tiny",
                     "--preset",
                     "pi0_aloha",
                     "--image",
                     "base=" + (seen / "base.jpg").string(),
                     "--image",
                     "left=" + (seen / "left_wrist.jpg").string(),
                     "--image",
                     "right=" + (seen / "right_wrist.png").string(),
                     "--state",
                     (seen / "state.json").string(),
                     "--tokens",
                     tokens};
  const Result result = tendon(demo);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("actions (50, 14), normalised units"));
  EXPECT_THAT(result.err, HasSubstr("synthetic weights have no statistics"));
  const json reply = run_json(plus(demo, {"--json"}));
  EXPECT_EQ(reply["shape"], json({50, 14}));
  EXPECT_EQ(reply["units"], "normalised");
}

}  // namespace
}  // namespace tendon::test
