#include "model/config.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "model/weights/names.h"
#include "shape_source.h"

namespace tendon::test {
namespace {

CheckpointConfig tiny_statement() {
  CheckpointConfig config;
  config.vision_heads = 3;
  config.gemma_heads = 8;
  return config;
}

void expect_equal(const ModelConfig& got, const ModelConfig& want) {
  EXPECT_EQ(got.variant, want.variant);
  EXPECT_EQ(got.vision.image_size, want.vision.image_size);
  EXPECT_EQ(got.vision.patch, want.vision.patch);
  EXPECT_EQ(got.vision.width, want.vision.width);
  EXPECT_EQ(got.vision.depth, want.vision.depth);
  EXPECT_EQ(got.vision.heads, want.vision.heads);
  EXPECT_EQ(got.vision.mlp, want.vision.mlp);
  EXPECT_EQ(got.prefix.width, want.prefix.width);
  EXPECT_EQ(got.prefix.mlp, want.prefix.mlp);
  EXPECT_EQ(got.expert.width, want.expert.width);
  EXPECT_EQ(got.expert.mlp, want.expert.mlp);
  EXPECT_EQ(got.depth, want.depth);
  EXPECT_EQ(got.heads, want.heads);
  EXPECT_EQ(got.kv_heads, want.kv_heads);
  EXPECT_EQ(got.head_dim, want.head_dim);
  EXPECT_EQ(got.vocab, want.vocab);
  EXPECT_EQ(got.action_dim, want.action_dim);
  EXPECT_EQ(got.eps, 1e-6F);
  EXPECT_EQ(got.vision.eps, 1e-6F);
  EXPECT_EQ(got.rope_theta, 10000.0);
  EXPECT_EQ(got.min_period, 4e-3);
  EXPECT_EQ(got.max_period, 4.0);
}

TEST(ModelConfig, PublishedSizesNeedNoConfigFile) {
  for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
    const ModelConfig want = full_config(variant);
    const ModelConfig got = infer_model_config(ShapeSource(want), {}, variant);
    expect_equal(got, want);
    EXPECT_EQ(got.horizon, 0) << "shapes do not tell the horizon";
    EXPECT_EQ(got.max_token_len, 0);
  }
}

TEST(ModelConfig, TinySizesNeedHeadCountsOnly) {
  for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
    for (const int64_t action_dim : {32, 8}) {
      const ModelConfig want = tiny_config(variant, action_dim);
      expect_equal(infer_model_config(ShapeSource(want), tiny_statement(), variant), want);
    }
  }
}

TEST(ModelConfig, DerivedSizes) {
  const ModelConfig full = full_config(Variant::kPi05);
  EXPECT_EQ(full.vision.tokens(), 256);
  EXPECT_EQ(full.vision.pixels(), 224 * 224 * 3);
  EXPECT_EQ(full.q_width(), 2048);
  EXPECT_EQ(full.kv_width(), 256);
  EXPECT_TRUE(full.pi05());
  EXPECT_EQ(full.max_token_len, 200);
  EXPECT_EQ(full_config(Variant::kPi0).max_token_len, 48);
  EXPECT_EQ(tiny_config(Variant::kPi0).vision.tokens(), 4);
  EXPECT_EQ(tiny_config(Variant::kPi05).vision.tokens(), 16);
}

TEST(ModelConfig, StatedNumbersAreObeyed) {
  CheckpointConfig config = tiny_statement();
  config.rope_theta = 5e5;
  config.min_period = 1e-2;
  config.max_period = 8.0;
  config.layer_norm_eps = 1e-5;
  config.rms_norm_eps = 1e-7;
  const ModelConfig got = infer_model_config(ShapeSource(tiny_config(Variant::kPi0)), config, Variant::kPi0);
  EXPECT_EQ(got.rope_theta, 5e5);
  EXPECT_EQ(got.min_period, 1e-2);
  EXPECT_EQ(got.max_period, 8.0);
  EXPECT_EQ(got.vision.eps, 1e-5F);
  EXPECT_EQ(got.eps, 1e-7F);
}

TEST(ModelConfig, MissingEmbeddingNamesBothKeys) {
  ShapeSource source(full_config(Variant::kPi0));
  source.drop(kEmbedding);
  const std::string text = message_of(ErrorKind::kBadInput, [&] { infer_model_config(source, {}, Variant::kPi0); });
  EXPECT_TRUE(contains(text, "paligemma_with_expert.paligemma.lm_head.weight")) << text;
  EXPECT_TRUE(contains(text, "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight")) << text;
  EXPECT_TRUE(contains(text, "test source")) << text;
}

TEST(ModelConfig, MissingHeadCountIsAskedFor) {
  const ShapeSource source(tiny_config(Variant::kPi0));
  CheckpointConfig config = tiny_statement();
  config.vision_heads.reset();
  std::string text = message_of(ErrorKind::kBadInput, [&] { infer_model_config(source, config, Variant::kPi0); });
  EXPECT_TRUE(contains(text, "vision heads") && contains(text, "48") && contains(text, "config.json")) << text;
  config = tiny_statement();
  config.gemma_heads.reset();
  text = message_of(ErrorKind::kBadInput, [&] { infer_model_config(source, config, Variant::kPi0); });
  EXPECT_TRUE(contains(text, "attention heads") && contains(text, "128")) << text;
}

TEST(ModelConfig, HeadCountsThatDoNotFitAreRefused) {
  const ShapeSource source(tiny_config(Variant::kPi0));
  CheckpointConfig config = tiny_statement();
  config.vision_heads = 5;
  EXPECT_TRUE(contains(message_of(ErrorKind::kBadInput, [&] { infer_model_config(source, config, Variant::kPi0); }),
                       "5 vision heads for a width of 48"));
  config = tiny_statement();
  config.vision_heads = 0;
  EXPECT_TRUE(contains(message_of(ErrorKind::kBadInput, [&] { infer_model_config(source, config, Variant::kPi0); }),
                       "0 vision heads"));
  config = tiny_statement();
  config.head_dim = 32;  // 8 · 32 ≠ 128
  EXPECT_TRUE(contains(message_of(ErrorKind::kBadInput, [&] { infer_model_config(source, config, Variant::kPi0); }),
                       "8 heads of 32 do not fit a query width of 128"));
}

TEST(ModelConfig, StacksOfUnequalDepthAreRefused) {
  ShapeSource source(tiny_config(Variant::kPi0));
  for (const std::string& name : std::vector(source.names())) {
    if (name.starts_with(kExpert + "layers.2.")) source.drop(name);
  }
  const std::string text =
      message_of(ErrorKind::kBadInput, [&] { infer_model_config(source, tiny_statement(), Variant::kPi0); });
  EXPECT_TRUE(contains(text, "3 layers") && contains(text, "expert 2")) << text;
}

// A layer that lacks one tensor is still a layer: load_weights says what is missing.
TEST(ModelConfig, DepthDoesNotHangOnOneTensor) {
  ShapeSource source(tiny_config(Variant::kPi0));
  for (const char* const tensor : {"layers.1.self_attn.k_proj.weight", "layers.2.self_attn.k_proj.weight"}) {
    source.drop(kExpert + tensor);
    EXPECT_EQ(infer_model_config(source, tiny_statement(), Variant::kPi0).depth, 3) << tensor;
  }
  source.set(kExpert + "layers.999999999.self_attn.k_proj.weight", {16, 32});  // no layer, but an unexpected tensor
  EXPECT_EQ(infer_model_config(source, tiny_statement(), Variant::kPi0).depth, 3);
}

TEST(ModelConfig, BrokenShapesAreNamed) {
  ShapeSource source(tiny_config(Variant::kPi0));
  source.set(kVision + "embeddings.position_embedding.weight", {5, 48});
  EXPECT_TRUE(
      contains(message_of(ErrorKind::kBadInput, [&] { infer_model_config(source, tiny_statement(), Variant::kPi0); }),
               "5 rows"));
  source.set(kVision + "embeddings.position_embedding.weight", {4, 48, 1});
  const std::string rank =
      message_of(ErrorKind::kBadInput, [&] { infer_model_config(source, tiny_statement(), Variant::kPi0); });
  EXPECT_TRUE(contains(rank, "position_embedding.weight") && contains(rank, "[4, 48, 1]")) << rank;
  ShapeSource other(tiny_config(Variant::kPi0));
  other.drop(kVision + "embeddings.patch_embedding.weight");
  const std::string missing =
      message_of(ErrorKind::kBadInput, [&] { infer_model_config(other, tiny_statement(), Variant::kPi0); });
  EXPECT_TRUE(contains(missing, "patch_embedding.weight' is missing")) << missing;
}

TEST(ChooseLengths, OptionThenPresetThenConfig) {
  CheckpointConfig stated;
  stated.horizon = 50;
  stated.max_token_len = 48;
  ModelConfig model = full_config(Variant::kPi0);
  choose_lengths(model, stated, {}, {});
  EXPECT_EQ(model.horizon, 50);
  EXPECT_EQ(model.max_token_len, 48);
  choose_lengths(model, stated, {.option = {}, .preset = 10}, {.option = {}, .preset = 100});
  EXPECT_EQ(model.horizon, 10);
  EXPECT_EQ(model.max_token_len, 100);
  choose_lengths(model, stated, {.option = 15, .preset = 10}, {.option = 64, .preset = 100});
  EXPECT_EQ(model.horizon, 15);
  EXPECT_EQ(model.max_token_len, 64);
}

TEST(ChooseLengths, LerobotConfigComesBeforeThePreset) {
  ModelConfig model;
  CheckpointConfig stated;
  stated.kind = ConfigKind::kLerobot;
  stated.horizon = 30;
  choose_lengths(model, stated, {.option = {}, .preset = 10}, {.option = {}, .preset = 100});
  EXPECT_EQ(model.horizon, 30);
  EXPECT_EQ(model.max_token_len, 100);
  choose_lengths(model, stated, {.option = 15, .preset = 10}, {.option = {}, .preset = 100});
  EXPECT_EQ(model.horizon, 15);
}

TEST(ChooseLengths, UnknownOnesAreAskedForNeverGuessed) {
  ModelConfig model = full_config(Variant::kPi0);
  CheckpointConfig stated;
  stated.max_token_len = 48;
  const std::string horizon = message_of(ErrorKind::kBadInput, [&] { choose_lengths(model, stated, {}, {}); });
  EXPECT_TRUE(contains(horizon, "action horizon") && contains(horizon, "--horizon") && contains(horizon, "--preset"))
      << horizon;
  const std::string tokens =
      message_of(ErrorKind::kBadInput, [&] { choose_lengths(model, {}, {.option = 10, .preset = {}}, {}); });
  EXPECT_TRUE(contains(tokens, "prompt budget") && contains(tokens, "--max-tokens")) << tokens;
}

TEST(ChooseLengths, RefusesAbsurdLengths) {
  ModelConfig model = full_config(Variant::kPi0);
  CheckpointConfig stated;
  stated.max_token_len = 48;
  for (const int64_t bad : {int64_t{0}, int64_t{-3}, int64_t{4097}}) {
    const std::string text =
        message_of(ErrorKind::kBadInput, [&] { choose_lengths(model, stated, {.option = bad, .preset = {}}, {}); });
    EXPECT_TRUE(contains(text, "action horizon must lie between 1 and 4096, not " + std::to_string(bad))) << text;
  }
}

}  // namespace
}  // namespace tendon::test
