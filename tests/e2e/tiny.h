// Tiny checkpoints for the end-to-end tests: read, change a few weights, write again; and inputs of any size.
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/registry.h"
#include "checkpoint/safetensors.h"
#include "engine/engine.h"
#include "engine/load.h"
#include "model/weights/synth.h"

namespace tendon::test {

inline std::filesystem::path data_dir() { return TENDON_TEST_DATA; }

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << text;
  ASSERT_TRUE(file.flush()) << path;
}

// A directory that goes away with the object.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "tendon_e2e_XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr) << name;
    path_ = name;
  }
  ~TempDir() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// --- weights --------------------------------------------------------------------------------------------------------

// One stored tensor, owned.
struct Stored {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<std::byte> bytes;

  std::vector<float> floats() const {
    Tensor view(dtype, shape, const_cast<std::byte*>(bytes.data()));
    const std::vector<double> wide = to_doubles(view);
    return {wide.begin(), wide.end()};
  }
};

// The IEEE half of a float that a half holds exactly and normally (or zero).
inline uint16_t exact_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  if ((bits & 0x7fffffffU) == 0) return static_cast<uint16_t>(sign);
  const auto half = static_cast<uint16_t>(sign | ((((bits >> 23) & 0xffU) - 112U) << 10) | ((bits >> 13) & 0x3ffU));
  EXPECT_EQ(half_to_float(half), value);
  return half;
}

inline Stored store(const std::vector<float>& values, const Shape& shape, DType dtype) {
  Stored stored{dtype, shape, std::vector<std::byte>(values.size() * dtype_bytes(dtype))};
  const auto put = [&](size_t i, auto value) {
    std::memcpy(stored.bytes.data() + i * sizeof(value), &value, sizeof(value));
  };
  for (size_t i = 0; i < values.size(); ++i) {
    switch (dtype) {
      case DType::kF32:
        put(i, values[i]);
        break;
      case DType::kF64:
        put(i, static_cast<double>(values[i]));
        break;
      case DType::kBf16:
        put(i, to_bf16(values[i]).bits);
        break;
      case DType::kF16:
        put(i, exact_half(values[i]));
        break;
      default:
        ADD_FAILURE() << dtype_name(dtype);
    }
  }
  return stored;
}

using StoredMap = std::map<std::string, Stored>;

inline StoredMap read_weights(const std::filesystem::path& directory) {
  const SafetensorsFile file = SafetensorsFile::open(directory / "model.safetensors");
  StoredMap weights;
  for (const SafetensorsEntry& entry : file.entries()) {
    weights[entry.name] = {entry.dtype, entry.shape, {entry.data, entry.data + entry.size_bytes}};
  }
  return weights;
}

inline void write_weights(const std::filesystem::path& directory, const StoredMap& weights) {
  std::filesystem::create_directories(directory);
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, stored] : weights) specs.push_back({name, stored.dtype, stored.shape});
  SafetensorsWriter writer(directory / "model.safetensors", specs, {{"format", "pt"}});
  for (const auto& [name, stored] : weights) writer.append(std::span<const std::byte>(stored.bytes));
  writer.finish();
}

// Weights and the config of another checkpoint.
inline void write_checkpoint(const std::filesystem::path& directory, const StoredMap& weights,
                             const std::filesystem::path& config_of) {
  write_weights(directory, weights);
  write_text(directory / "config.json", read_text(config_of / "config.json"));
}

// Replaces the values of a weight, which keeps its shape.
inline void set_weight(StoredMap& weights, const std::string& name, const std::vector<float>& values,
                       DType dtype = DType::kF32) {
  ASSERT_TRUE(weights.contains(name)) << name;
  const Shape shape = weights[name].shape;
  ASSERT_EQ(std::ssize(values), shape.elements()) << name;
  weights[name] = store(values, shape, dtype);
}

// A checkpoint whose network output is `bias`, whatever goes in: with N Euler steps from 1 to 0 the actions are
// noise - bias.
inline void write_constant_checkpoint(const std::filesystem::path& directory, const std::filesystem::path& base,
                                      const std::vector<float>& bias) {
  StoredMap weights = read_weights(base);
  const auto elements = static_cast<size_t>(weights["action_out_proj.weight"].shape.elements());
  set_weight(weights, "action_out_proj.weight", std::vector<float>(elements, 0.0F));
  set_weight(weights, "action_out_proj.bias", bias);
  write_checkpoint(directory, weights, base);
}

// More rows for tokens: the tests' tokenizer has 560 pieces, the tiny models 512 rows.
inline void add_embeddings(StoredMap& weights, int64_t rows) {
  for (const char* const part : {"paligemma.lm_head.weight", "gemma_expert.lm_head.weight"}) {
    const auto name = std::string("paligemma_with_expert.") + part;
    if (!weights.contains(name)) continue;
    const Stored& stored = weights[name];
    std::vector<float> values = stored.floats();
    const auto width = static_cast<size_t>(stored.shape[1]);
    for (size_t i = values.size(); i < static_cast<size_t>(rows) * width; ++i) values.push_back(values[i % 977] / 2);
    weights[name] = store(values, {rows, stored.shape[1]}, stored.dtype);
  }
}

// --- inputs ---------------------------------------------------------------------------------------------------------

// One request with its own memory: `cameras` pictures, all active unless `active` says otherwise.
struct Request {
  std::vector<std::vector<uint8_t>> images;
  std::vector<bool> active;
  std::vector<int32_t> tokens;
  std::vector<float> state, noise;

  Request(const ModelConfig& config, int64_t number, size_t cameras = 3, int64_t prompt = 5)
      : active(cameras, true),
        tokens(synthetic_prompt(prompt, config.vocab, number)),
        state(synthetic_state(config.action_dim, number)),
        noise(synthetic_noise(config.horizon, config.action_dim, number)) {
    for (size_t camera = 0; camera < cameras; ++camera) {
      images.push_back(synthetic_image("view" + std::to_string(camera), config.vision.image_size, number));
    }
  }

  Request& mask(const std::vector<bool>& values) {
    active = values;
    return *this;
  }

  Sample sample() const {
    Sample result;
    for (size_t camera = 0; camera < images.size(); ++camera) {
      result.cameras.push_back({images[camera].data(), DType::kU8, active[camera]});
    }
    result.tokens = tokens;
    result.state = state;
    result.noise = noise;
    return result;
  }
};

inline LoadedModel load_tiny(const std::filesystem::path& directory, std::optional<int64_t> horizon = {},
                             std::optional<int64_t> max_token_len = {}) {
  LoadOptions options;
  options.horizon.option = horizon;
  options.max_token_len.option = max_token_len;
  return load_model(directory.string(), options);
}

// What infer gives for these samples; fails the test unless it is ok.
inline std::vector<float> infer(Engine& engine, std::span<const Sample> samples) {
  std::vector<float> actions(samples.size() *
                             static_cast<size_t>(engine.config().horizon * engine.config().action_dim));
  const Status status = engine.infer(samples, actions);
  EXPECT_TRUE(status.is_ok()) << status.message();
  return actions;
}
inline std::vector<float> infer(Engine& engine, const Request& request) {
  const Sample sample = request.sample();
  return infer(engine, std::span(&sample, 1));
}

inline bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline double max_abs_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(d <= worst)) worst = d;  // NaN counts
  }
  return worst;
}

}  // namespace tendon::test
