#include "model/weights/synth.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/convert.h"
#include "base/parallel.h"
#include "base/simd.h"
#include "checkpoint/safetensors.h"
#include "model/weights/names.h"
#include "model/weights/weights.h"

namespace tendon {
namespace {

struct Rule {
  std::string hashed_name;
  double offset = 0, scale = 0;
};

Rule rule_of(const std::string& name, const Shape& shape) {
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  const double linear = std::sqrt(3.0 / static_cast<double>(shape[-1]));
  if (ends(".dense.weight")) return {name, 0.0, linear};
  if (ends(".dense.bias")) return {name, 0.0, 0.5};
  if (ends(".bias")) return {name, 0.0, 0.05};
  if (ends("patch_embedding.weight")) {
    return {name, 0.0, std::sqrt(3.0 / static_cast<double>(shape[1] * shape[2] * shape[3]))};
  }
  if (ends("position_embedding.weight")) return {name, 0.0, 0.04};
  if (ends("embed_tokens.weight")) return {kEmbedding, 0.0, 0.04};
  if (ends("lm_head.weight")) return {name, 0.0, 0.04};
  if (ends(".layer_norm1.weight") || ends(".layer_norm2.weight") || ends(".post_layernorm.weight")) {
    return {name, 1.0, 0.2};
  }
  if (ends(".input_layernorm.weight") || ends(".post_attention_layernorm.weight") || ends(".norm.weight")) {
    return {name, 0.0, 0.2};
  }
  if (ends(".q_proj.weight")) return {name, 0.0, 2.5 * linear};
  if (ends(".k_proj.weight") && name.find("gemma_expert") != std::string::npos) return {name, 0.0, 1.5 * linear};
  return {name, 0.0, linear};
}

TENDON_SIMD_CLONES void fill(uint64_t seed, double offset, double scale, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t h = splitmix64(seed + static_cast<uint64_t>(i));
    const double r = static_cast<double>(static_cast<int32_t>(h >> 40)) * kValueRuleUnit - 1.0;
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(offset + scale * r));
    out[i] = static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
  }
}

std::string sample_name(const std::string& name, int64_t sample) {
  return sample == 0 ? name : name + "#" + std::to_string(sample);
}

double signed_unit(uint64_t seed, int64_t i) {
  return static_cast<double>(static_cast<int32_t>(splitmix64(seed + static_cast<uint64_t>(i)) >> 40)) * kValueRuleUnit -
         1.0;
}

nlohmann::ordered_json config_json(const ModelConfig& c, DType dtype) {
  return {{"model", variant_name(c.variant)},
          {"pi05", c.pi05()},
          {"action_dim", c.action_dim},
          {"action_horizon", c.horizon},
          {"max_token_len", c.max_token_len},
          {"precision", dtype == DType::kBf16 ? "bfloat16" : "float32"},
          {"vision",
           {{"image_size", c.vision.image_size},
            {"patch", c.vision.patch},
            {"width", c.vision.width},
            {"depth", c.vision.depth},
            {"heads", c.vision.heads},
            {"mlp", c.vision.mlp},
            {"layer_norm_eps", 1e-6}}},
          {"gemma",
           {{"width", c.prefix.width},
            {"depth", c.depth},
            {"mlp", c.prefix.mlp},
            {"heads", c.heads},
            {"kv_heads", c.kv_heads},
            {"head_dim", c.head_dim},
            {"vocab", c.vocab},
            {"rope_theta", c.rope_theta},
            {"rms_norm_eps", 1e-6}}},
          {"expert",
           {{"width", c.expert.width},
            {"depth", c.depth},
            {"mlp", c.expert.mlp},
            {"heads", c.heads},
            {"kv_heads", c.kv_heads},
            {"head_dim", c.head_dim}}},
          {"min_period", c.min_period},
          {"max_period", c.max_period}};
}

}  // namespace

uint64_t fnv1a64(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325ULL;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return h;
}

ValueRule synthetic_rule(const std::string& name, const Shape& shape) {
  const Rule rule = rule_of(name, shape);
  return {.seed = fnv1a64(rule.hashed_name), .offset = rule.offset, .scale = rule.scale};
}

void synthetic_weight(const std::string& name, const Shape& shape, int64_t first, int64_t count, Bf16* out) {
  const ValueRule rule = synthetic_rule(name, shape);
  const uint64_t seed = rule.seed + static_cast<uint64_t>(first);
  parallel_for(count, 1 << 16, [&](int64_t begin, int64_t end) {
    fill(seed + static_cast<uint64_t>(begin), rule.offset, rule.scale, end - begin, &out[begin].bits);
  });
}

std::vector<uint8_t> synthetic_image(const std::string& camera, int64_t size, int64_t sample) {
  const uint64_t seed = fnv1a64(sample_name("input.image." + camera, sample));
  std::vector<uint8_t> image(static_cast<size_t>(size * size * 3));
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<uint8_t>(splitmix64(seed + i) >> 56);
  return image;
}

std::vector<float> synthetic_noise(int64_t horizon, int64_t action_dim, int64_t sample) {
  const uint64_t seed = fnv1a64(sample_name("input.noise", sample));
  std::vector<float> noise(static_cast<size_t>(horizon * action_dim));
  for (size_t i = 0; i < noise.size(); ++i) {
    noise[i] = static_cast<float>(std::sqrt(3.0) * signed_unit(seed, static_cast<int64_t>(i)));
  }
  return noise;
}

std::vector<float> synthetic_state(int64_t dim, int64_t sample) {
  const uint64_t seed = fnv1a64(sample_name("input.state", sample));
  std::vector<float> state(static_cast<size_t>(dim));
  for (size_t i = 0; i < state.size(); ++i) state[i] = static_cast<float>(signed_unit(seed, static_cast<int64_t>(i)));
  return state;
}

std::vector<int32_t> synthetic_prompt(int64_t count, int64_t vocab, int64_t sample) {
  const uint64_t seed = fnv1a64(sample_name("input.prompt", sample));
  const auto span = static_cast<uint64_t>(std::min<int64_t>(250000, vocab - 12));
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(splitmix64(seed + i) % span) + 4;
  if (!tokens.empty()) tokens[0] = 2;
  return tokens;
}

SyntheticSource::SyntheticSource(const ModelConfig& config, std::string description, const Progress& progress,
                                 Making making)
    : description_(std::move(description)) {
  std::vector<WeightSpec> layout = stored_layout(config);
  std::erase_if(layout, [](const WeightSpec& spec) { return spec.name == kExpertHead; });
  constexpr size_t kAlign = 256;
  for (const WeightSpec& spec : layout) {
    bytes_ += (static_cast<size_t>(spec.shape.elements()) * sizeof(Bf16) + kAlign - 1) / kAlign * kAlign;
  }
  memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory_ == MAP_FAILED) {
    memory_ = nullptr;
    throw_device("{} needs {:.1f} GB of memory, which could not be had.", description_,
                 static_cast<double>(bytes_) * 1e-9);
  }
  madvise(memory_, bytes_, MADV_HUGEPAGE);
  size_t offset = 0;
  for (const WeightSpec& spec : layout) {
    const Tensor tensor(DType::kBf16, spec.shape, static_cast<char*>(memory_) + offset);
    tensors_.emplace(spec.name, Entry{tensor});
    names_.push_back(spec.name);
    offset += (tensor.bytes() + kAlign - 1) / kAlign * kAlign;
    if (making == Making::kWhenAsked) continue;
    (void)this->tensor(spec.name);
    if (progress) progress(static_cast<double>(offset), static_cast<double>(bytes_));
  }
}

SyntheticSource::~SyntheticSource() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

SyntheticSource::Entry& SyntheticSource::entry(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw_bad_input("{} has no weight named '{}'.", description_, name);
  return found->second;
}

Tensor SyntheticSource::tensor(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  Entry& found = entry(name);
  if (!found.made) {
    synthetic_weight(std::string(name), found.tensor.shape, 0, found.tensor.elements(), found.tensor.as<Bf16>());
    found.made = true;
  }
  return found.tensor;
}

Tensor SyntheticSource::header(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const Entry& found = entry(name);
  return found.made ? found.tensor : Tensor(DType::kBf16, found.tensor.shape);
}

std::optional<ValueRule> SyntheticSource::rule(std::string_view name) const {
  return synthetic_rule(std::string(name), entry(name).tensor.shape);
}

std::optional<ModelConfig> parse_synthetic(std::string_view checkpoint) {
  constexpr std::string_view kScheme = "synthetic:";
  if (!checkpoint.starts_with(kScheme)) return {};
  const std::string_view what = checkpoint.substr(kScheme.size());
  if (what == "pi0") return full_config(Variant::kPi0);
  if (what == "pi05") return full_config(Variant::kPi05);
  if (what == "pi0-tiny") return tiny_config(Variant::kPi0);
  if (what == "pi05-tiny") return tiny_config(Variant::kPi05);
  throw_bad_use(
      "There is no synthetic checkpoint '{}'. Known: synthetic:pi0, synthetic:pi05, synthetic:pi0-tiny, "
      "synthetic:pi05-tiny.",
      checkpoint);
}

void write_synthetic_checkpoint(const ModelConfig& config, const std::string& directory, DType dtype,
                                const Progress& progress) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw_bad_input("Cannot make the directory '{}': {}.", directory, error.message());
  const std::vector<WeightSpec> layout = stored_layout(config);
  std::vector<SafetensorsSpec> specs;
  double total = 0;
  for (const WeightSpec& spec : layout) {
    specs.push_back({spec.name, dtype, spec.shape});
    total += static_cast<double>(spec.shape.elements());
  }
  SafetensorsWriter writer(std::filesystem::path(directory) / "model.safetensors", specs, {{"format", "pt"}});
  constexpr int64_t kChunk = int64_t{1} << 24;
  std::vector<Bf16> chunk;
  std::vector<float> wide;
  double done = 0;
  for (const WeightSpec& spec : layout) {
    const int64_t n = spec.shape.elements();
    for (int64_t first = 0; first < n; first += kChunk) {
      const int64_t count = std::min(kChunk, n - first);
      chunk.resize(static_cast<size_t>(count));
      synthetic_weight(spec.name, spec.shape, first, count, chunk.data());
      if (dtype == DType::kBf16) {
        writer.append(std::span<const Bf16>(chunk));
      } else {
        wide.resize(chunk.size());
        widen(Tensor(DType::kBf16, {count}, chunk.data()), wide.data());
        writer.append(std::span<const float>(wide));
      }
      done += static_cast<double>(count);
      if (progress) progress(done, total);
    }
  }
  writer.finish();
  const auto path = std::filesystem::path(directory) / "config.json";
  std::ofstream file(path);
  file << config_json(config, dtype).dump(1) << "\n";
  if (!file.flush()) throw_bad_input("Cannot write '{}'.", path.string());
}

}  // namespace tendon
