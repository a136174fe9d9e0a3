#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <set>

#include "checkpoint/key_styles.h"
#include "test_files.h"

namespace tendon {
namespace {

using test::expect_refusal;
using test::filled;
using test::TempDir;
using test::TestTensor;
using test::TestTensors;
using test::write_safetensors;
using test::write_text;

const std::string kPg = "paligemma_with_expert.paligemma.";
const std::string kEx = "paligemma_with_expert.gemma_expert.";
const std::string kHead = std::string(kEmbeddingName);
const std::string kTokens = std::string(kEmbedTokensName);

std::unique_ptr<Checkpoint> open_tensors(const TempDir& dir, const TestTensors& tensors, const LogSink& log = {}) {
  write_safetensors(dir / "model.safetensors", tensors);
  return Checkpoint::open(dir.path(), log);
}

void expect_same_weights(const Checkpoint& a, const Checkpoint& b) {
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : a.names()) {
    const Tensor left = a.tensor(name), right = b.tensor(name);
    ASSERT_EQ(left.shape, right.shape) << name;
    ASSERT_TRUE(left.dtype == right.dtype) << name;
    ASSERT_EQ(std::memcmp(left.data, right.data, left.bytes()), 0) << name;
  }
}

// Renames every tensor.
TestTensors renamed(const TestTensors& tensors, const std::function<std::string(const std::string&)>& rename) {
  TestTensors result;
  for (const auto& [name, tensor] : tensors) result[rename(name)] = tensor;
  return result;
}

std::string replace_prefix(const std::string& name, const std::string& from, const std::string& to) {
  return name.starts_with(from) ? to + name.substr(from.size()) : name;
}

TEST(Checkpoint, OpensTheTinyFixtures) {
  const auto pi0 = Checkpoint::open(test::test_data("tiny_pi0"));
  const auto pi05 = Checkpoint::open(test::test_data("tiny_pi05/model.safetensors"));
  EXPECT_EQ(pi0->names().size() + pi0->ignored().size(), 107U);
  EXPECT_EQ(pi05->names().size() + pi05->ignored().size(), 112U);
  EXPECT_TRUE(std::is_sorted(pi0->names().begin(), pi0->names().end()));
  EXPECT_TRUE(checkpoint_variant(*pi0) == Variant::kPi0);
  EXPECT_TRUE(checkpoint_variant(*pi05, Variant::kPi05) == Variant::kPi05);
  EXPECT_EQ(pi0->config().horizon, 5);
  EXPECT_EQ(pi05->config().horizon, 5);  // of the same directory
  EXPECT_EQ(pi05->directory(), test::test_data("tiny_pi05"));
  EXPECT_EQ(pi0->path(), test::test_data("tiny_pi0"));
  EXPECT_EQ(pi0->description(), test::test_data("tiny_pi0").string());
  ASSERT_EQ(pi0->ignored().size(), 1U);
  EXPECT_EQ(pi0->ignored()[0].stored_name, kEx + "lm_head.weight");
  EXPECT_EQ(pi0->dtype_summary(), "bf16 (106 tensors)");
  EXPECT_EQ(pi0->tensor(kHead).shape, Shape({512, 64}));
  pi0->prefetch(kHead);
  EXPECT_EQ(pi0->stored_name("state_proj.weight"), "state_proj.weight");
  expect_refusal([&] { (void)pi0->tensor("nothing"); }, {"tiny_pi0", "'nothing'"});
}

TEST(Checkpoint, FieldCase01_EmbeddingUnderEitherOrBothNames) {
  TempDir dir;
  const auto reference = Checkpoint::open(test::test_data("tiny_pi0"));
  const TestTensors tied = test::read_tensors(test::test_data("tiny_pi0/model.safetensors"));
  test::Log log;
  TestTensors tokens_only = tied;
  tokens_only[kTokens] = tokens_only[kHead];
  tokens_only.erase(kHead);
  auto checkpoint = open_tensors(dir, tokens_only, log.sink());
  expect_same_weights(*reference, *checkpoint);
  EXPECT_EQ(checkpoint->stored_name(kHead), kTokens);

  TestTensors both = tied;
  both[kTokens] = both[kHead];
  expect_same_weights(*reference, *open_tensors(dir, both, log.sink()));
  EXPECT_TRUE(log.warnings.empty());

  both[kHead].data.back() ^= std::byte{1};  // a stale lm_head
  expect_same_weights(*reference, *open_tensors(dir, both, log.sink()));
  ASSERT_EQ(log.warnings.size(), 1U);
  EXPECT_EQ(log.count(kTokens), 1U);
  EXPECT_EQ(log.count(kHead), 1U);

  TestTensors neither = tied;
  neither.erase(kHead);
  checkpoint = open_tensors(dir, neither);
  EXPECT_FALSE(checkpoint->contains(kHead));
  expect_refusal([&] { (void)checkpoint->tensor(kHead); }, {kHead, kTokens});
}

TEST(Checkpoint, FieldCase01_EqualTablesOfDifferentDtypeDoNotWarn) {
  TempDir dir;
  TestTensors tensors = {{kHead, filled(DType::kF32, {3, 2}, 0)}, {kTokens, filled(DType::kBf16, {3, 2}, 0)}};
  test::Log log;
  EXPECT_TRUE(open_tensors(dir, tensors, log.sink())->tensor(kHead).dtype == DType::kBf16);
  EXPECT_TRUE(log.warnings.empty());
  tensors[kTokens] = filled(DType::kBf16, {3, 2}, 1);
  open_tensors(dir, tensors, log.sink());
  EXPECT_EQ(log.warnings.size(), 1U);
}

TEST(Checkpoint, FieldCase02_KeyStylesLoadAlike) {
  TempDir dir;
  for (const char* fixture : {"tiny_pi0", "tiny_pi05"}) {
    const auto reference = Checkpoint::open(test::test_data(fixture));
    const TestTensors tensors = test::read_tensors(test::test_data(fixture) / "model.safetensors");
    const std::vector<std::function<std::string(const std::string&)>> styles = {
        [](const std::string& name) { return "model." + name; },
        [](const std::string& name) {  // transformers before 4.52
          std::string old = replace_prefix(name, kPg + "model.language_model.", kPg + "language_model.model.");
          old = replace_prefix(old, kPg + "model.vision_tower.", kPg + "vision_tower.");
          old = replace_prefix(old, kPg + "model.multi_modal_projector.", kPg + "multi_modal_projector.");
          return replace_prefix(old, kPg + "lm_head.", kPg + "language_model.lm_head.");
        },
        [](const std::string& name) {  // newer transformers
          return "model." + replace_prefix(name, kPg + "model.vision_tower.vision_model.", kPg + "model.vision_tower.");
        },
        [](const std::string& name) {  // the other model's name for the time MLP
          return name.starts_with("action_time_mlp") ? name.substr(7)
                 : name.starts_with("time_mlp")      ? "action_" + name
                                                     : name;
        }};
    for (const auto& style : styles) {
      const auto checkpoint = open_tensors(dir, renamed(tensors, style));
      expect_same_weights(*reference, *checkpoint);
      EXPECT_TRUE(detect_variant(*checkpoint) == detect_variant(*reference));
      EXPECT_EQ(checkpoint->stored_name("action_in_proj.weight"), style("action_in_proj.weight"));
    }
  }
}

TEST(Checkpoint, FieldCase02_TwoNamesOfOneTensorAreRefused) {
  TempDir dir;
  const TestTensor weight = filled(DType::kF32, {2, 2}, 0);
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"state_proj.weight", "model.state_proj.weight"},
      {kPg + "language_model.model.norm.weight", kPg + "model.language_model.norm.weight"},
      {kPg + "language_model.lm_head.weight", kPg + "lm_head.weight"}};
  for (const auto& [a, b] : pairs) {
    expect_refusal([&] { open_tensors(dir, {{a, weight}, {b, weight}}); }, {a, b, dir.path().string()});
  }
}

TEST(Checkpoint, FieldCase02_LeftoversAreRefusedByName) {
  TempDir dir;
  const TestTensor weight = filled(DType::kF32, {2, 2}, 0);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {kEx + "model.layers.0.self_attn.q_proj.lora_A.weight", "LoRA"},
      {"model.proprio_history_proj.weight", "history"},
      {"model.expert.layers.0.mlp.up_proj.weight", "PI0ForConditionalGeneration"}};
  for (const auto& [name, why] : cases) {
    expect_refusal([&] { open_tensors(dir, {{name, weight}}); }, {name, why, "model.safetensors"});
  }
}

TEST(Checkpoint, IgnoredTensorsAreListed) {
  TempDir dir;
  TestTensors tensors = test::read_tensors(test::test_data("tiny_pi05/model.safetensors"));
  const std::string head = kPg + "model.vision_tower.vision_model.head.probe";
  const std::string ids = kPg + "model.vision_tower.vision_model.embeddings.position_ids";
  tensors[head] = filled(DType::kF64, {2}, 0);
  tensors[ids] = filled(DType::kI64, {1, 16}, 0);  // its dtype does not matter
  tensors["state_proj.weight"] = filled(DType::kF32, {32, 32}, 0);
  tensors["state_proj.bias"] = filled(DType::kF32, {32}, 0);
  const auto checkpoint = open_tensors(dir, tensors);
  EXPECT_TRUE(detect_variant(*checkpoint) == Variant::kPi05);
  std::set<std::string> ignored;
  for (const IgnoredTensor& tensor : checkpoint->ignored()) {
    EXPECT_FALSE(tensor.reason.empty());
    ignored.insert(tensor.stored_name);
  }
  EXPECT_EQ(ignored,
            (std::set<std::string>{kEx + "lm_head.weight", head, ids, "state_proj.bias", "state_proj.weight"}));
  expect_same_weights(*Checkpoint::open(test::test_data("tiny_pi05")), *checkpoint);
}

TEST(Checkpoint, FieldCase03_VariantFromTensorsNotFromPathOrConfig) {
  TempDir dir;
  const TestTensors tensors = test::read_tensors(test::test_data("tiny_pi0/model.safetensors"));
  write_safetensors(dir / "my_pi05_policy/model.safetensors", tensors);
  auto checkpoint = Checkpoint::open(dir / "my_pi05_policy");
  EXPECT_TRUE(checkpoint_variant(*checkpoint) == Variant::kPi0);
  expect_refusal([&] { checkpoint_variant(*checkpoint, Variant::kPi05); },
                 {"my_pi05_policy", "pi0,", "pi05 was asked"});
  write_text(dir / "my_pi05_policy/config.json", R"({"type": "pi05"})");
  checkpoint = Checkpoint::open(dir / "my_pi05_policy");
  EXPECT_TRUE(detect_variant(*checkpoint) == Variant::kPi0);
  expect_refusal([&] { checkpoint_variant(*checkpoint); }, {"config.json says pi05", "pi0,"});
}

TEST(Checkpoint, FieldCase03_NeitherOrBothIsRefusedNamingTheTensors) {
  TempDir dir;
  const TestTensor weight = filled(DType::kF32, {2, 2}, 0);
  const std::string dense = kEx + "model.norm.dense.weight";
  const std::string plain = kEx + "model.norm.weight";
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"state_proj.weight"},
      {"state_proj.weight", plain},
      {dense},
      {dense, plain, "state_proj.weight"},
      {plain, "time_mlp_in.weight"},
      {dense, plain, "time_mlp_in.weight"},
  };
  for (const std::vector<std::string>& present : cases) {
    TestTensors tensors = {{"other.weight", weight}};
    for (const std::string& name : present) tensors[name] = weight;
    std::vector<std::string> parts = present;
    parts.push_back(present.empty() ? "Present: none" : "Present: ");
    const auto checkpoint = open_tensors(dir, tensors);
    expect_refusal([&] { detect_variant(*checkpoint); }, parts);
  }
  TestTensors all = test::read_tensors(test::test_data("tiny_pi0/model.safetensors"));
  all.merge(test::read_tensors(test::test_data("tiny_pi05/model.safetensors")));
  const auto checkpoint = open_tensors(dir, all);
  expect_refusal([&] { detect_variant(*checkpoint); }, {"time_mlp_in.weight", "action_time_mlp_in.weight"});
}

// Splits the tensors of a fixture over two shards.
void write_shards(const TempDir& dir, const TestTensors& tensors) {
  TestTensors shards[2];
  std::string map;
  size_t i = 0;
  for (const auto& [name, tensor] : tensors) {
    const size_t shard = i++ % 2;
    shards[shard][name] = tensor;
    map += fmt::format("{}\"{}\": \"model-0000{}-of-00002.safetensors\"", map.empty() ? "" : ", ", name, shard + 1);
  }
  write_safetensors(dir / "model-00001-of-00002.safetensors", shards[0]);
  write_safetensors(dir / "model-00002-of-00002.safetensors", shards[1]);
  write_text(dir / "model.safetensors.index.json", R"({"metadata": {"total_size": 1}, "weight_map": {)" + map + "}}");
}

TEST(Checkpoint, FieldCase04_ShardsLoadLikeOneFileAndAMissingOneIsNamed) {
  TempDir dir;
  const TestTensors tensors = test::read_tensors(test::test_data("tiny_pi0/model.safetensors"));
  write_shards(dir, tensors);
  expect_same_weights(*Checkpoint::open(test::test_data("tiny_pi0")), *Checkpoint::open(dir.path()));

  test::Log log;
  write_safetensors(dir / "model.safetensors", {{"state_proj.weight", filled(DType::kF32, {2, 2}, 0)}});
  EXPECT_EQ(Checkpoint::open(dir.path(), log.sink())->names().size(), 1U);  // the single file wins
  ASSERT_EQ(log.infos.size(), 1U);
  EXPECT_EQ(log.count("shards"), 1U);

  std::filesystem::remove(dir / "model.safetensors");
  std::filesystem::remove(dir / "model-00002-of-00002.safetensors");
  expect_refusal([&] { Checkpoint::open(dir.path()); }, {"model-00002-of-00002.safetensors", "missing"});
  std::filesystem::remove(dir / "model.safetensors.index.json");
  expect_refusal([&] { Checkpoint::open(dir.path()); },
                 {"model-00001-of-00002.safetensors", "model.safetensors.index.json"});
}

TEST(Checkpoint, FieldCase04_IndexAndShardsMustAgree) {
  TempDir dir;
  const TestTensor weight = filled(DType::kF32, {2}, 0);
  write_shards(dir, {{"a", weight}, {"b", weight}, {"c", weight}});  // a and c in the first
  write_safetensors(dir / "model-00001-of-00002.safetensors", {{"a", weight}});
  expect_refusal([&] { Checkpoint::open(dir.path()); }, {"'c'", "model-00001-of-00002.safetensors", "different saves"});
  write_safetensors(dir / "model-00001-of-00002.safetensors", {{"a", weight}, {"c", weight}, {"d", weight}});
  expect_refusal([&] { Checkpoint::open(dir.path()); }, {"'d'", "model-00001-of-00002.safetensors", "different saves"});
}

TEST(Checkpoint, FieldCase04_MalformedIndex) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "weight_map"},
      {"{}", "weight_map"},
      {R"({"weight_map": []})", "weight_map"},
      {R"({"weight_map": {}})", "weight_map"},
      {R"({"weight_map": {"t": 3}})", "'t'"},
      {R"({"weight_map": {"t": "../x.safetensors"}})", "../x.safetensors"},
      {R"({"weight_map": {"t": ".."}})", "'..'"},
      {R"({"weight_map": {"t": ""}})", "'t'"},
      {"{", "not valid JSON"}};
  for (const auto& [text, part] : cases) {
    expect_refusal([&] { parse_shard_index(text, "i.json"); }, {"i.json", part});
  }
}

TEST(Checkpoint, FieldCase05_StoredPrecisions) {
  TempDir dir;
  TestTensors tensors = {{"a.weight", filled(DType::kF32, {2}, 0)},
                         {"b.weight", filled(DType::kBf16, {2}, 0)},
                         {"c.weight", filled(DType::kF16, {2}, 0)}};
  EXPECT_EQ(open_tensors(dir, tensors)->dtype_summary(), "bf16 (1 tensors), f16 (1 tensors), f32 (1 tensors)");
  for (const DType dtype : {DType::kF64, DType::kI64, DType::kI32, DType::kU8, DType::kBool}) {
    tensors["d.weight"] = filled(dtype, {2}, 0);
    expect_refusal([&] { open_tensors(dir, tensors); },
                   {"'d.weight'", std::string(dtype_name(dtype)), "model.safetensors", "bf16"});
  }
  write_text(dir / "model.safetensors",
             test::raw_safetensors(R"({"e.weight":{"dtype":"F8_E5M2","shape":[2],"data_offsets":[0,2]}})", 2));
  expect_refusal([&] { Checkpoint::open(dir.path()); }, {"'e.weight'", "F8_E5M2", "model.safetensors"});
}

TEST(Checkpoint, NothingToLoadSaysWhatWasLookedFor) {
  TempDir dir;
  expect_refusal([&] { Checkpoint::open(dir / "absent"); }, {"absent", "no such file or directory"});
  expect_refusal([&] { Checkpoint::open(dir.path()); }, {dir.path().string(), "model.safetensors", "index.json"});
  write_text(dir / "weights.bin", "x");
  expect_refusal([&] { Checkpoint::open(dir / "weights.bin"); }, {"weights.bin", ".safetensors"});
  std::filesystem::create_directories(dir / "params");
  expect_refusal([&] { Checkpoint::open(dir.path()); }, {"params", "JAX"});
  write_safetensors(dir / "pretrained_model/model.safetensors", {});
  expect_refusal([&] { Checkpoint::open(dir.path()); }, {(dir / "pretrained_model").string()});
  write_text(dir / "model.safetensors", "");
  expect_refusal([&] { Checkpoint::open(dir.path()); }, {"model.safetensors", "too short"});
}

TEST(Checkpoint, TimeMlpOfOddWidthKeepsItsName) {
  TempDir dir;
  const auto names = [&](const Shape& mlp) {
    return open_tensors(dir, {{"time_mlp_in.weight", filled(DType::kF32, mlp, 0)},
                              {"action_in_proj.weight", filled(DType::kF32, {4, 2}, 0)}})
        ->names()
        .back();
  };
  EXPECT_EQ(names({4, 4}), "time_mlp_in.weight");
  EXPECT_EQ(names({4, 9}), "time_mlp_in.weight");
  EXPECT_EQ(names({8}), "time_mlp_in.weight");
  EXPECT_EQ(names({0, 0}), "time_mlp_in.weight");
  const auto renamed_names = open_tensors(dir, {{"time_mlp_in.weight", filled(DType::kF32, {4, 8}, 0)},
                                                {"time_mlp_out.bias", filled(DType::kF32, {4}, 0)},
                                                {"action_in_proj.weight", filled(DType::kF32, {4, 2}, 0)}})
                                 ->names();
  EXPECT_EQ(renamed_names, (std::vector<std::string>{"action_in_proj.weight", "action_time_mlp_in.weight",
                                                     "action_time_mlp_out.bias"}));
}

TEST(Checkpoint, StatisticsAmongWeightsMustBeSmallAndUnique) {
  TempDir dir;
  const std::string name = "normalize_inputs.buffer_observation_state.mean";
  expect_refusal([&] { open_tensors(dir, {{name, filled(DType::kF32, {65537}, 0)}}); }, {name, "65537"});
  expect_refusal(
      [&] {
        open_tensors(dir, {{name, test::floats({1})}, {"model." + name, test::floats({1})}});
      },
      {name, "twice"});
}

}  // namespace
}  // namespace tendon
