#include "checkpoint/key_styles.h"

#include "test_files.h"

namespace tendon {
namespace {

const std::string kPg = "paligemma_with_expert.paligemma.";
const std::string kEx = "paligemma_with_expert.gemma_expert.";

TEST(KeyStyles, FieldCase02_KnownNamesMapToOneCanonicalName) {
  const std::string lm = kPg + "model.language_model.";
  const std::string vt = kPg + "model.vision_tower.vision_model.";
  const struct {
    std::string canonical;
    std::vector<std::string> stored;
  } cases[] = {
      {lm + "layers.3.mlp.up_proj.weight",
       {kPg + "language_model.model.layers.3.mlp.up_proj.weight", kPg + "language_model.layers.3.mlp.up_proj.weight",
        kPg + "model.language_model.model.layers.3.mlp.up_proj.weight"}},
      {lm + "norm.weight", {kPg + "language_model.model.norm.weight"}},
      {lm + "embed_tokens.weight", {kPg + "language_model.model.embed_tokens.weight"}},
      {kPg + "lm_head.weight",
       {kPg + "language_model.lm_head.weight", kPg + "model.language_model.lm_head.weight",
        kPg + "model.lm_head.weight"}},
      {vt + "encoder.layers.0.mlp.fc1.bias",
       {kPg + "vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias",
        kPg + "vision_tower.encoder.layers.0.mlp.fc1.bias", kPg + "model.vision_tower.encoder.layers.0.mlp.fc1.bias"}},
      {vt + "post_layernorm.weight", {kPg + "vision_tower.post_layernorm.weight"}},
      {kPg + "model.multi_modal_projector.linear.weight", {kPg + "multi_modal_projector.linear.weight"}},
      {kEx + "model.layers.0.self_attn.q_proj.weight", {}},
      {"action_in_proj.weight", {}},
      {"action_out_proj.bias", {}},
      {"action_time_mlp_in.weight", {}},
      {"state_proj.weight", {}},
      {"time_mlp_out.bias", {}},
  };
  for (const auto& [canonical, others] : cases) {
    std::vector<std::string> stored = others;
    stored.push_back(canonical);
    for (const std::string& name : stored) {
      for (const std::string& outer : {std::string(), std::string("model.")}) {
        const KeyMapping mapping = map_key(outer + name);
        EXPECT_EQ(mapping.canonical, canonical) << outer + name;
        EXPECT_TRUE(mapping.kind == KeyKind::kWeight) << outer + name;
      }
    }
  }
}

TEST(KeyStyles, OuterModelIsStrippedOnlyBeforeKnownHeads) {
  EXPECT_EQ(map_key("model.something.weight").canonical, "model.something.weight");
  EXPECT_EQ(map_key("model.model.state_proj.weight").canonical, "model.model.state_proj.weight");
  EXPECT_TRUE(map_key("model.something.weight").kind == KeyKind::kWeight);
}

TEST(KeyStyles, IgnoredRefusedAndStatistics) {
  const struct {
    std::string stored;
    KeyKind kind;
  } cases[] = {
      {kEx + "lm_head.weight", KeyKind::kIgnored},
      {"model." + kEx + "lm_head.weight", KeyKind::kIgnored},
      {kEx + "model.embed_tokens.weight", KeyKind::kIgnored},
      {kPg + "model.vision_tower.vision_model.head.probe", KeyKind::kIgnored},
      {kPg + "vision_tower.vision_model.head.mlp.fc1.weight", KeyKind::kIgnored},
      {kPg + "vision_tower.vision_model.embeddings.position_ids", KeyKind::kIgnored},
      {kPg + "model.language_model.rotary_emb.inv_freq", KeyKind::kIgnored},
      {kEx + "model.layers.0.self_attn.rotary_emb.inv_freq", KeyKind::kIgnored},
      {"normalize_inputs.buffer_observation_state.mean", KeyKind::kStats},
      {"model.unnormalize_outputs.buffer_action.std", KeyKind::kStats},
      {"normalize_targets.buffer_action.std", KeyKind::kStats},
      {kEx + "model.layers.0.self_attn.q_proj.lora_A.default.weight", KeyKind::kRefused},
      {"proprio_history_proj.weight", KeyKind::kRefused},
      {"model.proprio_history_proj.bias", KeyKind::kRefused},
      {"model.vision_tower.vision_model.post_layernorm.weight", KeyKind::kRefused},
      {"model.expert.layers.0.mlp.up_proj.weight", KeyKind::kRefused},
  };
  for (const auto& [stored, kind] : cases) {
    const KeyMapping mapping = map_key(stored);
    EXPECT_EQ(static_cast<int>(mapping.kind), static_cast<int>(kind)) << stored;
    EXPECT_FALSE(mapping.note.empty()) << stored;
  }
}

TEST(KeyStyles, FieldCase01_MissingEmbeddingNamesBothKeys) {
  const std::string text = describe_key(kEmbeddingName);
  EXPECT_NE(text.find("lm_head.weight"), std::string::npos);
  EXPECT_NE(text.find("embed_tokens.weight"), std::string::npos);
  EXPECT_EQ(describe_key("state_proj.weight"), "state_proj.weight");
}

}  // namespace
}  // namespace tendon
