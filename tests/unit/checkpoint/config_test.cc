#include "checkpoint/checkpoint_config.h"

#include "test_files.h"

namespace tendon {
namespace {

using test::expect_refusal;

CheckpointConfig parse(const std::string& text, const LogSink& log = {}) {
  return parse_checkpoint_config(text, "dir/config.json", log);
}

TEST(CheckpointConfig, AbsentFileIsEmpty) {
  test::TempDir dir;
  const CheckpointConfig config = load_checkpoint_config(dir.path());
  EXPECT_TRUE(config.kind == ConfigKind::kNone);
  EXPECT_FALSE(config.horizon || config.variant || config.dtype);
}

TEST(CheckpointConfig, ReadsOpenpiConverter) {
  test::Log log;
  const CheckpointConfig config = parse(
      R"({"action_dim": 32, "action_horizon": 50, "paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m",
          "precision": "bfloat16"})",
      log.sink());
  EXPECT_TRUE(config.kind == ConfigKind::kOpenpi);
  EXPECT_EQ(config.action_dim, 32);
  EXPECT_EQ(config.horizon, 50);
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_EQ(config.paligemma_variant, "gemma_2b");
  EXPECT_EQ(config.action_expert_variant, "gemma_300m");
  EXPECT_FALSE(config.variant || config.max_token_len);
  EXPECT_TRUE(log.infos.empty() && log.warnings.empty());
}

TEST(CheckpointConfig, LoraVariantIsWarnedAbout) {
  test::Log log;
  parse(R"({"paligemma_variant": "gemma_2b_lora", "action_expert_variant": "gemma_300m"})", log.sink());
  ASSERT_EQ(log.warnings.size(), 1U);
  EXPECT_EQ(log.count("gemma_2b_lora"), 1U);
}

TEST(CheckpointConfig, ReadsSyntheticFixtures) {
  const CheckpointConfig config = load_checkpoint_config(test::test_data("tiny_pi0"));
  EXPECT_TRUE(config.kind == ConfigKind::kSynthetic);
  EXPECT_TRUE(config.variant == Variant::kPi0);
  EXPECT_EQ(config.horizon, 5);
  EXPECT_EQ(config.max_token_len, 12);
  EXPECT_EQ(config.image_size, 28);
  EXPECT_EQ(config.patch, 14);
  EXPECT_EQ(config.vision_heads, 3);
  EXPECT_EQ(config.gemma_heads, 8);
  EXPECT_EQ(config.kv_heads, 1);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.min_period, 0.004);
  EXPECT_EQ(config.max_period, 4.0);
  EXPECT_EQ(config.layer_norm_eps, 1e-6);
  EXPECT_TRUE(config.unknown_fields.empty());
  EXPECT_TRUE(load_checkpoint_config(test::test_data("tiny_pi05")).variant == Variant::kPi05);
}

constexpr const char* kLerobot = R"({
  "type": "pi05", "n_obs_steps": 1, "chunk_size": 50, "n_action_steps": 10, "max_state_dim": 32, "max_action_dim": 32,
  "num_inference_steps": 10, "min_period": 0.004, "max_period": 4.0, "tokenizer_max_length": 200, "dtype": "float32",
  "image_resolution": [224, 224], "empty_cameras": 1, "device": "cuda", "optimizer_lr": 2.5e-05, "use_relative_actions": false,
  "adapt_to_pi_aloha": false, "use_delta_joint_actions_aloha": false, "rtc_config": null, "proprio_history_len": 0,
  "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "QUANTILES", "ACTION": "MEAN_STD"},
  "input_features": {
    "observation.images.zeta": {"type": "VISUAL", "shape": [3, 480, 640]},
    "observation.state": {"type": "STATE", "shape": [8]},
    "observation.images.alpha": {"type": "VISUAL", "shape": [3, 256, 256]}},
  "output_features": {"action": {"type": "ACTION", "shape": [7]}}, "brand_new": 1, "another_one": {"a": [NaN]}})";

TEST(CheckpointConfig, FieldCase04_ReadsLerobotAndListsUnknownFieldsOnce) {
  test::Log log;
  const CheckpointConfig config = parse(kLerobot, log.sink());
  EXPECT_TRUE(config.kind == ConfigKind::kLerobot);
  EXPECT_TRUE(config.variant == Variant::kPi05);
  EXPECT_EQ(config.horizon, 50);
  EXPECT_EQ(config.n_action_steps, 10);
  EXPECT_EQ(config.action_dim, 32);
  EXPECT_EQ(config.state_dim, 32);
  EXPECT_EQ(config.num_steps, 10);
  EXPECT_EQ(config.max_token_len, 200);
  EXPECT_EQ(config.image_size, 224);
  EXPECT_EQ(config.empty_cameras, 1);
  EXPECT_EQ(config.dtype, "float32");
  EXPECT_EQ(config.cameras, (std::vector<std::string>{"observation.images.zeta", "observation.images.alpha"}));
  EXPECT_EQ(config.robot_state_dim, 8);
  EXPECT_EQ(config.robot_action_dim, 7);
  EXPECT_TRUE(config.norm_modes.at("STATE") == NormMode::kQuantile);
  EXPECT_TRUE(config.norm_modes.at("ACTION") == NormMode::kMeanStd);
  EXPECT_EQ(config.unknown_fields, (std::vector<std::string>{"brand_new", "another_one"}));
  ASSERT_EQ(log.infos.size(), 1U);
  EXPECT_EQ(log.count("brand_new, another_one"), 1U);
  EXPECT_EQ(log.count("dir/config.json"), 1U);
}

TEST(CheckpointConfig, FieldCase04_OldNamesAreObeyed) {
  const CheckpointConfig config =
      parse(R"({"type": "pi0", "chunk_size": 30, "num_steps": 5, "resize_imgs_with_padding": [224, 224]})");
  EXPECT_EQ(config.num_steps, 5);
  EXPECT_EQ(config.image_size, 224);
  EXPECT_EQ(parse(R"({"num_steps": 5, "num_inference_steps": 5})").num_steps, 5);
  expect_refusal([] { parse(R"({"num_steps": 5, "num_inference_steps": 10})"); },
                 {"dir/config.json", "num_steps", "num_inference_steps", "contradict"});
}

TEST(CheckpointConfig, FieldCase04_UnsupportedOptionsAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> options = {{"adapt_to_pi_aloha", "true"},
                                                                    {"use_delta_joint_actions_aloha", "true"},
                                                                    {"use_relative_actions", "true"},
                                                                    {"use_peft", "true"},
                                                                    {"proprio_history_len", "4"},
                                                                    {"use_proprio_history", "true"},
                                                                    {"memory_length", "8"},
                                                                    {"use_memory", "true"},
                                                                    {"n_obs_steps", "2"},
                                                                    {"use_video_memory", "\"yes\""}};
  for (const auto& [name, on] : options) {
    expect_refusal([&] { parse(fmt::format(R"({{"type": "pi0", "{}": {}}})", name, on)); }, {"dir/config.json", name});
    for (const char* off : {"false", "null", "0"}) {
      if (name == "n_obs_steps") continue;
      parse(fmt::format(R"({{"type": "pi0", "{}": {}}})", name, off));
    }
  }
}

TEST(CheckpointConfig, ModelOfOtherToolsIsUnknown) {
  for (const char* model : {R"({"hidden": 3})", R"("paligemma")", "3", "null"}) {
    const CheckpointConfig config = parse(fmt::format(R"({{"action_horizon": 50, "model": {}}})", model));
    EXPECT_FALSE(config.variant);
    EXPECT_EQ(config.unknown_fields, std::vector<std::string>{"model"});
  }
}

TEST(CheckpointConfig, WrongTypesNameFieldFoundAndExpected) {
  const struct {
    std::string text;
    std::vector<std::string> parts;
  } cases[] = {
      {R"({"chunk_size": "50"})", {"'chunk_size'", "a string", "expected an integer"}},
      {R"({"chunk_size": 50.5})", {"'chunk_size'", "fraction", "expected an integer"}},
      {R"({"chunk_size": 0})", {"'chunk_size'", "an integer (0)", "from 1"}},
      {R"({"chunk_size": -5})", {"'chunk_size'", "-5"}},
      {R"({"chunk_size": 18446744073709551615})", {"'chunk_size'", "18446744073709551615"}},
      {R"({"action_horizon": [50]})", {"'action_horizon'", "a list"}},
      {R"({"action_dim": true})", {"'action_dim'", "a boolean"}},
      {R"({"min_period": NaN})", {"'min_period'", "NaN"}},
      {R"({"min_period": -1})", {"'min_period'", "positive number"}},
      {R"({"min_period": 4, "max_period": 1})", {"'min_period'", "'max_period'"}},
      {R"({"dtype": 3})", {"'dtype'", "expected a string"}},
      {R"({"pi05": "yes"})", {"'pi05'", "true or false"}},
      {R"({"type": "act"})", {"'type'", "'act'", "pi05"}},
      {R"({"type": "pi0_fast"})", {"'type'", "'pi0_fast'"}},
      {R"({"type": ["pi0"]})", {"'type'", "a list"}},
      {R"({"model": "pi0", "pi05": true})", {"'pi05'", "pi0"}},
      {R"({"image_resolution": [224]})", {"'image_resolution'", "two integers"}},
      {R"({"image_resolution": [224, "a"]})", {"'image_resolution'", "two integers"}},
      {R"({"image_resolution": [224, 256]})", {"'image_resolution'", "square"}},
      {R"({"normalization_mapping": {"STATE": "MIN_MAX"}})", {"'normalization_mapping.STATE'", "MIN_MAX", "QUANTILES"}},
      {R"({"normalization_mapping": {"VISUAL": "MEAN_STD"}})", {"'normalization_mapping.VISUAL'", "IDENTITY"}},
      {R"({"normalization_mapping": []})", {"'normalization_mapping'", "a list", "an object"}},
      {R"({"input_features": {"observation.state": 3}})", {"'input_features.observation.state'", "an object"}},
      {R"({"input_features": {"observation.state": {"shape": [3]}}})", {"input_features.observation.state", "'type'"}},
      {R"({"output_features": {"action": {"type": "ACTION", "shape": "7"}}})", {"'output_features.action.shape'"}},
      {R"({"vision": {"heads": "3"}})", {"'vision.heads'", "a string"}},
      {R"({"gemma": {"head_dim": 0}})", {"'gemma.head_dim'"}},
      {R"({"gemma": 3})", {"'gemma'", "an integer", "an object"}},
      {R"({"chunk_size": 10, "n_action_steps": 11})", {"'n_action_steps'", "11", "'chunk_size'"}},
      {R"([])", {"a list", "JSON object"}},
      {R"({"a": 1,})", {"not valid JSON"}},
      {R"({"a": 1, "a": 2})", {"'a'", "twice"}},
  };
  for (const auto& [text, parts] : cases) {
    SCOPED_TRACE(text);
    expect_refusal([&] { parse(text); }, parts);
    expect_refusal([&] { parse(text); }, {"dir/config.json"});
  }
}

}  // namespace
}  // namespace tendon
