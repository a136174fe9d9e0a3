#include "checkpoint/stats_files.h"

#include <limits>

#include "test_files.h"

namespace tendon {
namespace {

using test::expect_refusal;
using test::floats;
using test::TempDir;
using test::write_safetensors;
using test::write_text;

std::string openpi_stats(double mean) {
  return fmt::format(R"({{"norm_stats": {{"state": {{"mean":[{0}],"std":[1],"q01":[0],"q99":[1]}},
                        "actions": {{"mean":[{0}],"std":[1],"q01":[0],"q99":[1]}}}}}})",
                     mean);
}

void write_asset(const TempDir& dir, const std::string& id, double mean) {
  write_text(dir / ("assets/" + id + "/norm_stats.json"), openpi_stats(mean));
}

constexpr NormMode kZ = NormMode::kMeanStd;

TEST(StatsFiles, FieldCase06_NoneIsRefusedWithPathIdsAndOptions) {
  TempDir dir;
  expect_refusal([&] { load_openpi_norm_stats(dir.path(), kZ); },
                 {(dir / "assets").string(), "norm_stats.json", "none", "--norm-stats", "--asset-id"});
  expect_refusal([&] { load_openpi_norm_stats(dir.path(), kZ, {.preset_asset_id = "droid"}); },
                 {"assets/droid/norm_stats.json"});
}

TEST(StatsFiles, FieldCase06_OneIsUsedAndLogged) {
  TempDir dir;
  write_asset(dir, "droid", 3);
  test::Log log;
  EXPECT_EQ(load_openpi_norm_stats(dir.path(), kZ, {.preset_asset_id = "trossen"}, log.sink()).state.mean[0], 3);
  ASSERT_EQ(log.infos.size(), 1U);
  EXPECT_EQ(log.count("assets/droid/norm_stats.json"), 1U);
}

TEST(StatsFiles, FieldCase06_SeveralNeedAChoice) {
  TempDir dir;
  write_asset(dir, "droid", 1);
  write_asset(dir, "trossen", 2);
  write_asset(dir, "ur5e", 3);
  EXPECT_EQ(list_asset_ids(dir.path()), (std::vector<std::string>{"droid", "trossen", "ur5e"}));
  expect_refusal([&] { load_openpi_norm_stats(dir.path(), kZ); }, {"droid, trossen, ur5e", "--asset-id"});
  expect_refusal([&] { load_openpi_norm_stats(dir.path(), kZ, {.preset_asset_id = "franka"}); },
                 {"droid, trossen, ur5e"});
  EXPECT_EQ(load_openpi_norm_stats(dir.path(), kZ, {.preset_asset_id = "ur5e"}).state.mean[0], 3);
  EXPECT_EQ(load_openpi_norm_stats(dir.path(), kZ, {.asset_id = "trossen", .preset_asset_id = "ur5e"}).state.mean[0],
            2);
  EXPECT_EQ(load_openpi_norm_stats(dir.path(), kZ, {.asset_id = "trossen/"}).state.mean[0], 2);
  for (const char* id : {"franka", "../assets/droid", "/etc", ""}) {
    expect_refusal([&] { load_openpi_norm_stats(dir.path(), kZ, {.asset_id = id}); }, {"droid, trossen, ur5e", id});
  }
}

TEST(StatsFiles, FieldCase06_FileOptionWins) {
  TempDir dir;
  write_asset(dir, "droid", 1);
  write_text(dir / "mine.json", openpi_stats(9));
  const StatsOptions options{.file = dir / "mine.json", .asset_id = "nothing"};
  EXPECT_EQ(load_openpi_norm_stats(dir.path(), kZ, options).state.mean[0], 9);
  expect_refusal([&] { load_openpi_norm_stats(dir.path(), kZ, {.file = dir / "absent.json"}); },
                 {"absent.json", "no such file"});
}

TEST(StatsFiles, FieldCase06_SlashesInIdsAndAssetsOneLevelUp) {
  TempDir dir;
  write_asset(dir, "physical-intelligence/libero", 4);
  EXPECT_EQ(list_asset_ids(dir.path()), std::vector<std::string>{"physical-intelligence/libero"});
  EXPECT_EQ(load_openpi_norm_stats(dir.path(), kZ, {.asset_id = "physical-intelligence/libero"}).state.mean[0], 4);
  std::filesystem::create_directories(dir / "torch");
  for (const char* below : {"torch", "torch/"}) {
    expect_refusal([&] { load_openpi_norm_stats(dir / below, kZ); },
                   {"torch/assets", "none", "parent directory", "physical-intelligence/libero"});
  }
}

std::string processor(const std::string& name, const std::string& state_file, const std::string& config) {
  return fmt::format(R"({{"name": "p", "steps": [
      {{"registry_name": "rename_observations_processor", "config": {{}}}},
      {{"registry_name": "relative_actions_processor", "config": {{"enabled": false}}}},
      {{"registry_name": "{}", "state_file": "{}", "config": {}}}]}})",
                     name, state_file, config);
}

// A LeRobot folder; `config` is the normaliser's.
void write_lerobot(const TempDir& dir, const std::string& config) {
  write_text(dir / "policy_preprocessor.json", processor("normalizer_processor", "pre_5.safetensors", config));
  write_text(dir / "policy_postprocessor.json", processor("unnormalizer_processor", "post_0.safetensors", config));
  const test::TestTensors tensors = {{"observation.state.mean", floats({1, 2})},
                                     {"observation.state.std", floats({1, 1})},
                                     {"observation.state.q01", floats({-1, 0})},
                                     {"observation.state.q99", floats({3, 0})},
                                     {"observation.state.min", floats({0, 0})},
                                     {"action.mean", floats({5})},
                                     {"action.std", floats({2})},
                                     {"action.q01", floats({0})},
                                     {"action.q99", floats({1})}};
  write_safetensors(dir / "pre_5.safetensors", tensors);
  write_safetensors(dir / "post_0.safetensors", tensors);
}

const std::string kMixed =
    R"({"eps": 1e-08, "norm_map": {"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "MEAN_STD"}})";

TEST(StatsFiles, LerobotReadsStateFileAndModesOfTheSteps) {
  TempDir dir;
  write_lerobot(dir, kMixed);
  test::Log log;
  const NormStats stats = load_lerobot_norm_stats(dir.path(), log.sink());
  EXPECT_TRUE(stats.convention == NormConvention::kLerobot);
  EXPECT_EQ(stats.eps, 1e-8);
  EXPECT_TRUE(stats.state.mode == NormMode::kQuantile);
  EXPECT_TRUE(stats.actions.mode == NormMode::kMeanStd);
  EXPECT_EQ(normalize_state(stats, std::vector<double>{0.5, 0}), (std::vector<double>{-0.25, -1}));
  EXPECT_EQ(unnormalize_actions(stats, std::vector<double>{1, 2}, 1), (std::vector<double>{7, 9}));
  EXPECT_EQ(log.count("pre_5.safetensors"), 1U);
  EXPECT_EQ(log.count("post_0.safetensors"), 1U);
}

TEST(StatsFiles, LerobotIdentityNeedsNoStatistics) {
  TempDir dir;
  write_lerobot(dir, R"({"norm_map": {"STATE": "IDENTITY", "ACTION": "IDENTITY"}})");
  std::filesystem::remove(dir / "pre_5.safetensors");
  std::filesystem::remove(dir / "post_0.safetensors");
  const NormStats stats = load_lerobot_norm_stats(dir.path());
  EXPECT_TRUE(stats.state.mode == NormMode::kIdentity && stats.actions.mode == NormMode::kIdentity);
}

TEST(StatsFiles, LerobotNormalizesOnlyTheKeysOfTheStep) {
  TempDir dir;
  const std::string config = R"({{"eps": null, "norm_map": {{"STATE": "MEAN_STD", "ACTION": "MEAN_STD"}},
                                 "normalize_observation_keys": {}}})";
  write_lerobot(dir, fmt::format(fmt::runtime(config), R"(["observation.other"])"));
  EXPECT_TRUE(load_lerobot_norm_stats(dir.path()).state.mode == NormMode::kIdentity);
  for (const char* keys : {R"(["observation.state"])", "null"}) {
    write_lerobot(dir, fmt::format(fmt::runtime(config), keys));
    EXPECT_TRUE(load_lerobot_norm_stats(dir.path()).state.mode == NormMode::kMeanStd);
  }
}

TEST(StatsFiles, LerobotRefusals) {
  TempDir dir;
  const auto load = [&] { load_lerobot_norm_stats(dir.path()); };
  expect_refusal(load, {"policy_preprocessor.json", "no such file"});
  write_lerobot(dir, kMixed);
  std::filesystem::remove(dir / "policy_postprocessor.json");
  expect_refusal(load, {"policy_postprocessor.json", "no such file"});
  write_lerobot(dir, R"({"norm_map": {"STATE": "MIN_MAX", "ACTION": "MEAN_STD"}})");
  expect_refusal(load, {"policy_preprocessor.json", "normalizer_processor", "STATE", "MIN_MAX"});
  write_lerobot(dir, R"({"norm_map": {"STATE": "MEAN_STD"}})");
  expect_refusal(load, {"policy_postprocessor.json", "ACTION"});
  write_lerobot(dir, R"({"norm_map": {"VISUAL": "MEAN_STD", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}})");
  expect_refusal(load, {"VISUAL", "IDENTITY"});
  write_lerobot(dir, kMixed);
  std::filesystem::remove(dir / "post_0.safetensors");
  expect_refusal(load, {"unnormalizer_processor", "post_0.safetensors", "missing"});
  write_lerobot(dir, kMixed);
  write_safetensors(dir / "pre_5.safetensors", {{"observation.state.mean", floats({1})}});
  expect_refusal(load, {"pre_5.safetensors", "observation.state.q01", "missing"});
  write_safetensors(dir / "pre_5.safetensors", {{"observation.state.q01", test::filled(DType::kF32, {2, 2}, 0)}});
  expect_refusal(load, {"pre_5.safetensors", "observation.state.q01", "[2, 2]"});
  write_lerobot(dir, kMixed);
  write_text(dir / "policy_postprocessor.json",
             processor("unnormalizer_processor", "post_0.safetensors",
                       R"({"eps": 1e-6, "norm_map": {"STATE": "QUANTILES", "ACTION": "MEAN_STD"}})"));
  expect_refusal(load, {"eps", "1e-08", "1e-06"});
}

TEST(StatsFiles, NormalizerStepRefusals) {
  const auto step = [](const std::string& text) { return "{\"steps\": [" + text + "]}"; };
  const struct {
    std::string text;
    std::vector<std::string> parts;
  } cases[] = {
      {"[]", {"'steps'"}},
      {"{\"steps\": {}}", {"'steps'"}},
      {step("3"), {"an integer"}},
      {step(""), {"'normalizer_processor'", "0 steps"}},
      {step(R"({"registry_name": 3})"), {"'registry_name'", "an integer"}},
      {step(R"({"registry_name": "normalizer_processor"})"), {"normalizer_processor", "'config'"}},
      {step(R"({"registry_name": "normalizer_processor", "config": {}})"), {"'norm_map'"}},
      {step(R"({"registry_name": "normalizer_processor", "config": {"eps": 0, "norm_map": {}}})"), {"eps"}},
      {step(R"({"registry_name": "normalizer_processor", "config": {"norm_map": {"STATE": 3}}})"), {"norm_map.STATE"}},
      {step(R"({"registry_name": "normalizer_processor", "state_file": 3, "config": {"norm_map": {}}})"),
       {"'state_file'"}},
      {step(R"({"registry_name": "normalizer_processor", "state_file": "../x", "config": {"norm_map": {}}})"),
       {"../x"}},
      {step(R"({"registry_name": "normalizer_processor", "config": {"norm_map": {}}},
               {"registry_name": "normalizer_processor", "config": {"norm_map": {}}})"),
       {"several steps"}},
      {step(R"({"registry_name": "relative_actions_processor", "config": {"enabled": true}})"),
       {"relative_actions_processor", "enabled"}},
      {step(R"({"registry_name": "absolute_actions_processor", "config": {}})"), {"absolute_actions_processor"}},
  };
  for (const auto& [text, parts] : cases) {
    SCOPED_TRACE(text);
    expect_refusal([&] { parse_normalizer_step(text, "p.json", "normalizer_processor"); }, parts);
    expect_refusal([&] { parse_normalizer_step(text, "p.json", "normalizer_processor"); }, {"p.json"});
  }
}

// The smallest thing that Checkpoint::open takes.
void write_weights(const TempDir& dir, const test::TestTensors& more = {}) {
  test::TestTensors tensors = more;
  tensors["action_in_proj.weight"] = test::filled(DType::kF32, {2, 2}, 0);
  write_safetensors(dir / "model.safetensors", tensors);
}

TEST(StatsFiles, LoadPrefersWhatTheFolderIsOf) {
  TempDir dir;
  write_weights(dir);
  write_asset(dir, "droid", 3);
  const auto load = [&](Variant variant, const StatsOptions& options = {}) {
    return load_norm_stats(*Checkpoint::open(dir.path()), variant, options);
  };
  EXPECT_TRUE(load(Variant::kPi0).state.mode == NormMode::kMeanStd);
  EXPECT_TRUE(load(Variant::kPi05).state.mode == NormMode::kQuantile);
  write_lerobot(dir, kMixed);
  EXPECT_TRUE(load(Variant::kPi0).convention == NormConvention::kOpenpi);
  write_text(dir / "config.json", R"({"type": "pi0", "chunk_size": 10})");
  EXPECT_TRUE(load(Variant::kPi0).convention == NormConvention::kLerobot);
  EXPECT_TRUE(load(Variant::kPi0, {.asset_id = "droid"}).convention == NormConvention::kOpenpi);
  std::filesystem::remove_all(dir / "assets");
  std::filesystem::remove(dir / "policy_preprocessor.json");
  std::filesystem::remove(dir / "policy_postprocessor.json");
  expect_refusal([&] { load(Variant::kPi0); }, {dir.path().string(), "policy_preprocessor.json", "--norm-stats"});
  std::filesystem::remove(dir / "config.json");
  expect_refusal([&] { load(Variant::kPi0); }, {"assets", "--norm-stats"});
}

TEST(StatsFiles, OldLerobotKeepsStatisticsAmongTheWeights) {
  TempDir dir;
  write_weights(dir, {{"normalize_inputs.buffer_observation_state.mean", floats({1})},
                      {"normalize_inputs.buffer_observation_state.std", floats({2})},
                      {"model.unnormalize_outputs.buffer_action.mean", floats({3})},
                      {"model.unnormalize_outputs.buffer_action.std", floats({4})},
                      {"normalize_targets.buffer_action.mean", floats({3})}});
  const auto checkpoint = Checkpoint::open(dir.path());
  EXPECT_EQ(checkpoint->names(), std::vector<std::string>{"action_in_proj.weight"});
  const NormStats stats = load_norm_stats(*checkpoint, Variant::kPi0);
  EXPECT_TRUE(stats.convention == NormConvention::kLerobot);
  EXPECT_EQ(unnormalize_state(stats, std::vector<double>{1}), std::vector<double>{3});
  EXPECT_EQ(unnormalize_actions(stats, std::vector<double>{1}, 1), std::vector<double>{7});
  CheckpointConfig config;
  config.norm_modes = {{"STATE", NormMode::kIdentity}, {"ACTION", NormMode::kQuantile}};
  expect_refusal([&] { norm_stats_from_buffers(checkpoint->stats_buffers(), config, "w"); },
                 {"unnormalize_outputs.buffer_action.q01", "missing"});
  // Buffers that were never filled hold infinity.
  write_weights(dir,
                {{"normalize_inputs.buffer_observation_state.mean", floats({1})},
                 {"normalize_inputs.buffer_observation_state.std", floats({std::numeric_limits<float>::infinity()})}});
  expect_refusal([&] { load_norm_stats(*Checkpoint::open(dir.path()), Variant::kPi0); },
                 {"normalize_inputs.buffer_observation_state.std[0]", "inf"});
}

}  // namespace
}  // namespace tendon
