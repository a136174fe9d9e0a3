#include "model/weights/synth.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "base/check.h"
#include "base/convert.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "model/weights/names.h"
#include "model/weights/weights.h"

namespace tendon {
namespace {

namespace fs = std::filesystem;

// A directory of its own, removed at the end.
class Scratch {
 public:
  Scratch() : path_(fs::temp_directory_path() / ("tendon_synth_test." + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Scratch() { fs::remove_all(path_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(SynthRule, HashCheckValues) {
  EXPECT_EQ(splitmix64(0), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(fnv1a64(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(fnv1a64("action_in_proj.weight"), 0x1c69486e17c5b263ULL);
  EXPECT_EQ(splitmix64(fnv1a64("action_in_proj.weight")), 0xe18b2fb9249e6ee0ULL);
  EXPECT_EQ(splitmix64(fnv1a64("action_in_proj.weight") + 1), 0x9e7c32d84441af30ULL);
  EXPECT_EQ(fnv1a64("input.noise#1"), 0x1326e12c8b6f3afbULL);
}

TEST(SynthRule, SpotValues) {
  const struct {
    std::string name;
    Shape shape;
    uint16_t bits[5];  // of elements 0, 1, 2, n/2, n - 1
    float first;
  } rows[] = {
      {kVision + "embeddings.patch_embedding.weight",
       {1152, 3, 14, 14},
       {0xbd21, 0x3c07, 0x3d8d, 0x3c9c, 0x3d7c},
       -0.0393066406F},
      {kVision + "embeddings.patch_embedding.bias", {1152}, {0x3d24, 0xbca9, 0x3c44, 0x3ca3, 0x3c55}, 0.0400390625F},
      {kVision + "embeddings.position_embedding.weight",
       {256, 1152},
       {0xbcf4, 0xbd16, 0x3d09, 0xbd1a, 0x3b37},
       -0.0297851562F},
      {kVision + "encoder.layers.0.layer_norm1.weight", {1152}, {0x3f84, 0x3f87, 0x3f5f, 0x3f5b, 0x3f8b}, 1.03125F},
      {kVision + "encoder.layers.0.self_attn.q_proj.weight",
       {1152, 1152},
       {0xbd75, 0xbdea, 0x3c9d, 0xbd34, 0xbe01},
       -0.0598144531F},
      {"paligemma_with_expert.paligemma.model.multi_modal_projector.linear.weight",
       {2048, 1152},
       {0xbcda, 0x3c32, 0xbd45, 0x3d01, 0x3cf8},
       -0.0266113281F},
      {"paligemma_with_expert.paligemma.lm_head.weight",
       {257152, 2048},
       {0x3c9a, 0xbce0, 0xbce8, 0xbcb7, 0xbd1b},
       0.0187988281F},
      {kPrefix + "layers.0.input_layernorm.weight", {2048}, {0xbe28, 0xbdb0, 0xbe07, 0xbda1, 0xbe1a}, -0.1640625F},
      {kPrefix + "layers.0.self_attn.q_proj.weight",
       {2048, 2048},
       {0xbc27, 0xbd0c, 0x3cf6, 0x3da0, 0x3d2b},
       -0.0101928711F},
      {kPrefix + "layers.17.mlp.down_proj.weight",
       {2048, 16384},
       {0x3c15, 0xbbb1, 0xbbd2, 0xbc26, 0x3c07},
       0.00909423828F},
      {kExpert + "layers.17.self_attn.k_proj.weight",
       {256, 1024},
       {0xbb72, 0xbd0e, 0xbd1c, 0xbd9c, 0xbd2e},
       -0.00369262695F},
      {"action_in_proj.weight", {1024, 32}, {0x3e6f, 0x3d95, 0x3d4c, 0xbe9b, 0x3ba3}, 0.233398438F},
      {"action_out_proj.weight", {32, 1024}, {0xbd06, 0x3d24, 0x3bc3, 0xbc00, 0xbd0a}, -0.0327148438F},
      {kExpert + "norm.weight", {1024}, {0xbe0b, 0x3df2, 0xbe11, 0x3e33, 0xbdea}, -0.135742188F},
      {"state_proj.weight", {1024, 32}, {0xbdf9, 0xbe84, 0x3dff, 0x3d27, 0xbe6b}, -0.121582031F},
      {"action_time_mlp_in.weight", {1024, 2048}, {0x3cb0, 0xbd00, 0xbcd2, 0x3c97, 0xbae6}, 0.021484375F},
      {kExpert + "layers.0.input_layernorm.dense.weight",
       {3072, 1024},
       {0xbced, 0x3c8a, 0xbcc5, 0xbc8f, 0xbb7a},
       -0.0289306641F},
      {kExpert + "layers.0.input_layernorm.dense.bias", {3072}, {0xbef2, 0x3d90, 0xbe34, 0x3e06, 0xbeb8}, -0.47265625F},
      {"time_mlp_in.weight", {1024, 1024}, {0xbd22, 0xbc80, 0x3d42, 0x3cb0, 0xba32}, -0.0395507812F},
      {kVision + "embeddings.patch_embedding.weight",
       {48, 3, 14, 14},
       {0xbd21, 0x3c07, 0x3d8d, 0xbc98, 0xbd0b},
       -0.0393066406F},
      {"paligemma_with_expert.paligemma.lm_head.weight",
       {512, 64},
       {0x3c9a, 0xbce0, 0xbce8, 0x3b19, 0xbc63},
       0.0187988281F},
      {kPrefix + "layers.0.self_attn.q_proj.weight",
       {128, 64},
       {0xbd6d, 0xbe45, 0x3e2e, 0xbef3, 0x3ec8},
       -0.0578613281F},
  };
  for (const auto& row : rows) {
    const int64_t n = row.shape.elements();
    const int64_t at[] = {0, 1, 2, n / 2, n - 1};
    for (size_t i = 0; i < 5; ++i) {
      Bf16 value;
      synthetic_weight(row.name, row.shape, at[i], 1, &value);
      EXPECT_EQ(value.bits, row.bits[i]) << row.name << " element " << at[i];
      if (i == 0) {
        EXPECT_FLOAT_EQ(to_float(value), row.first) << row.name;
      }
    }
  }
}

TEST(SynthRule, EmbeddingHasOneValueUnderBothNames) {
  std::vector<Bf16> head(8);
  std::vector<Bf16> table(8);
  synthetic_weight(kEmbedding, {512, 64}, 100, 8, head.data());
  synthetic_weight(kPrefix + "embed_tokens.weight", {512, 64}, 100, 8, table.data());
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(head[i].bits, table[i].bits);
}

// Pieces of a tensor are pieces of the whole, however long, also across the split into threads.
TEST(SynthRule, PiecesAgreeWithTheWhole) {
  const Shape shape{500, 400};
  const std::string name = kPrefix + "layers.0.mlp.gate_proj.weight";
  std::vector<Bf16> whole(200000);
  synthetic_weight(name, shape, 0, 200000, whole.data());
  for (const int64_t first : {0, 1, 131071, 199990}) {
    std::vector<Bf16> piece(10);
    synthetic_weight(name, shape, first, 10, piece.data());
    for (size_t i = 0; i < 10; ++i) ASSERT_EQ(piece[i].bits, whole[static_cast<size_t>(first) + i].bits) << first + i;
  }
}

TEST(SynthInputs, CheckValues) {
  const struct {
    const char* camera;
    std::vector<uint8_t> bytes;
  } images[] = {{"base_0_rgb", {251, 64, 118, 158, 161}},
                {"left_wrist_0_rgb", {42, 232, 76, 181, 193}},
                {"right_wrist_0_rgb", {61, 113, 128, 164, 132}}};
  for (const auto& row : images) {
    for (const int64_t size : {28, 224}) {
      const std::vector<uint8_t> image = synthetic_image(row.camera, size);
      ASSERT_EQ(std::ssize(image), size * size * 3);
      EXPECT_EQ(std::vector<uint8_t>(image.begin(), image.begin() + 5), row.bytes) << row.camera;
    }
  }
  const std::vector<float> noise = synthetic_noise(10, 32);
  ASSERT_EQ(noise.size(), 320U);
  const float want_noise[] = {1.13561976F, -0.550633073F, -0.402640611F, -1.66948283F, -0.761421263F};
  for (size_t i = 0; i < 5; ++i) EXPECT_FLOAT_EQ(noise[i], want_noise[i]);
  const std::vector<float> longer = synthetic_noise(50, 32);
  EXPECT_TRUE(std::equal(noise.begin(), noise.end(), longer.begin())) << "horizon 10 is the beginning of horizon 50";
  const std::vector<float> state = synthetic_state(32);
  const float want_state[] = {-0.29895854F, -0.689476728F, -0.260051012F, 0.309945464F, -0.327697515F};
  for (size_t i = 0; i < 5; ++i) EXPECT_FLOAT_EQ(state[i], want_state[i]);
  EXPECT_EQ(synthetic_prompt(8, 257152),
            (std::vector<int32_t>{2, 196607, 140755, 142193, 244942, 114590, 13134, 21176}));
  EXPECT_EQ(synthetic_prompt(7, 512), (std::vector<int32_t>{2, 107, 255, 193, 442, 90, 134}));
  EXPECT_EQ(synthetic_prompt(7, 512, 1), (std::vector<int32_t>{2, 96, 492, 404, 440, 212, 332}));
  EXPECT_TRUE(synthetic_prompt(0, 512).empty());
}

TEST(SynthInputs, SamplesOfABatchEqualTheFixture) {
  const auto fixture = SafetensorsFile::open(TENDON_TEST_DATA "/tiny_pi0/batch2_n10.safetensors");
  const Tensor noise = fixture.tensor("in/noise");
  const Tensor state = fixture.tensor("in/state");
  const Tensor image = fixture.tensor("in/image.left_wrist_0_rgb");
  for (int64_t b = 0; b < 2; ++b) {
    const std::vector<float> our_noise = synthetic_noise(5, 32, b);
    EXPECT_TRUE(std::equal(our_noise.begin(), our_noise.end(), noise.as<float>() + b * 160)) << b;
    const std::vector<float> our_state = synthetic_state(32, b);
    EXPECT_TRUE(std::equal(our_state.begin(), our_state.end(), state.as<float>() + b * 32)) << b;
    const std::vector<uint8_t> our_image = synthetic_image("left_wrist_0_rgb", 28, b);
    EXPECT_TRUE(std::equal(our_image.begin(), our_image.end(), image.as<uint8_t>() + b * 28 * 28 * 3)) << b;
  }
}

struct Stored {
  Variant variant;
  int64_t action_dim;
  const char* file;
};
const Stored kStored[] = {{Variant::kPi0, 32, "tiny_pi0/model.safetensors"},
                          {Variant::kPi0, 8, "tiny_pi0/a8/model.safetensors"},
                          {Variant::kPi05, 32, "tiny_pi05/model.safetensors"},
                          {Variant::kPi05, 8, "tiny_pi05/a8/model.safetensors"}};

TEST(SynthCheckpoint, TinyFilesBitForBit) {
  for (const Stored& stored : kStored) {
    const auto file = SafetensorsFile::open(std::string(TENDON_TEST_DATA) + "/" + stored.file);
    const std::vector<WeightSpec> layout = stored_layout(tiny_config(stored.variant, stored.action_dim));
    ASSERT_EQ(file.entries().size(), layout.size()) << stored.file;
    for (const WeightSpec& spec : layout) {
      ASSERT_TRUE(file.contains(spec.name)) << spec.name;
      const Tensor tensor = file.tensor(spec.name);
      ASSERT_EQ(tensor.dtype, DType::kBf16) << spec.name;
      ASSERT_EQ(tensor.shape, spec.shape) << spec.name;
      std::vector<Bf16> ours(static_cast<size_t>(spec.shape.elements()));
      synthetic_weight(spec.name, spec.shape, 0, spec.shape.elements(), ours.data());
      ASSERT_EQ(std::memcmp(ours.data(), tensor.data, tensor.bytes()), 0) << stored.file << " " << spec.name;
    }
  }
}

TEST(SynthCheckpoint, InMemoryEqualsTheFile) {
  for (const Stored& stored : kStored) {
    const auto file = SafetensorsFile::open(std::string(TENDON_TEST_DATA) + "/" + stored.file);
    double last = 0;
    const SyntheticSource source(tiny_config(stored.variant, stored.action_dim), "synthetic:test",
                                 [&](double done, double total) {
                                   EXPECT_GT(done, last);
                                   EXPECT_LE(done, total);
                                   last = done;
                                 });
    EXPECT_EQ(last, static_cast<double>(source.bytes()));
    EXPECT_EQ(source.names().size() + 1, file.entries().size());
    EXPECT_FALSE(source.contains(kExpertHead));
    EXPECT_EQ(source.description(), "synthetic:test");
    for (const std::string& name : source.names()) {
      const Tensor tensor = source.tensor(name);
      ASSERT_EQ(tensor.shape, file.tensor(name).shape);
      ASSERT_EQ(std::memcmp(tensor.data, file.tensor(name).data, tensor.bytes()), 0) << name;
    }
    EXPECT_THROW((void)source.tensor("no.such.weight"), Error);
  }
}

TEST(SynthCheckpoint, WrittenOnesOpenAndLoad) {
  for (const Variant variant : {Variant::kPi0, Variant::kPi05}) {
    for (const DType dtype : {DType::kBf16, DType::kF32}) {
      const Scratch scratch;
      const ModelConfig config = tiny_config(variant);
      const fs::path directory = scratch.path() / "new" / "folder";
      write_synthetic_checkpoint(config, directory.string(), dtype);

      const auto checkpoint = Checkpoint::open(directory);
      ASSERT_EQ(detect_variant(*checkpoint), variant);
      ModelConfig found = infer_model_config(*checkpoint, checkpoint->config(), variant);
      choose_lengths(found, checkpoint->config(), {}, {});
      EXPECT_EQ(found.vision.heads, config.vision.heads);
      EXPECT_EQ(found.head_dim, config.head_dim);
      EXPECT_EQ(found.horizon, config.horizon);
      EXPECT_EQ(found.max_token_len, config.max_token_len);
      EXPECT_EQ(found.action_dim, config.action_dim);
      const Weights weights = load_weights(*checkpoint, found);
      EXPECT_TRUE(weights.action_out.w.defined());

      const auto file = SafetensorsFile::open(directory / "model.safetensors");
      const std::vector<WeightSpec> layout = stored_layout(config);
      ASSERT_EQ(file.entries().size(), layout.size());
      for (const WeightSpec& spec : layout) {
        const Tensor tensor = file.tensor(spec.name);
        ASSERT_EQ(tensor.dtype, dtype) << spec.name;
        std::vector<Bf16> rule(static_cast<size_t>(spec.shape.elements()));
        synthetic_weight(spec.name, spec.shape, 0, spec.shape.elements(), rule.data());
        ASSERT_EQ(widened(tensor), widened(Tensor(DType::kBf16, spec.shape, rule.data()))) << spec.name;
      }
    }
  }
}

TEST(SynthCheckpoint, UnwritablePlacesAreNamed) {
  const Scratch scratch;
  std::ofstream(scratch.path() / "file") << "x";
  try {
    write_synthetic_checkpoint(tiny_config(Variant::kPi0), (scratch.path() / "file" / "below").string(), DType::kBf16);
    ADD_FAILURE() << "wrote below a file";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_NE(std::string(error.what()).find("below"), std::string::npos) << error.what();
  }
}

TEST(ParseSynthetic, KnownNamesOtherTextAndTypos) {
  EXPECT_EQ(parse_synthetic("synthetic:pi0")->vocab, 257152);
  EXPECT_TRUE(parse_synthetic("synthetic:pi05")->pi05());
  EXPECT_EQ(parse_synthetic("synthetic:pi0-tiny")->vocab, 512);
  EXPECT_EQ(parse_synthetic("synthetic:pi05-tiny")->vision.image_size, 56);
  EXPECT_FALSE(parse_synthetic("/models/synthetic:pi0").has_value());
  EXPECT_FALSE(parse_synthetic("").has_value());
  try {
    (void)parse_synthetic("synthetic:pi1");
    ADD_FAILURE() << "an unknown model was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadUse);
    EXPECT_NE(std::string(error.what()).find("synthetic:pi05-tiny"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tendon
