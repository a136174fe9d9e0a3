#include "model/weights/static_scales.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"
#include "checkpoint/safetensors.h"

namespace tendon {
namespace {

constexpr const char* kObservations = "observations";
constexpr const char* kWeights = "weights";
// What is left above the largest number that was seen, for observations that were not.
constexpr float kMargin = 1.5F;
// Of the largest column's size.
constexpr float kLeastColumn = 1.0F / 4096;

std::string find_or_empty(const std::map<std::string, std::string>& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? std::string() : found->second;
}

}  // namespace

OperandMaxima no_maxima(const ModelConfig& config) {
  const auto layers = [](int64_t count, int64_t attended, int64_t hidden) {
    const OperandMaxima::Layer layer{.attended = std::vector<float>(static_cast<size_t>(attended)),
                                     .hidden = std::vector<float>(static_cast<size_t>(hidden))};
    return std::vector<OperandMaxima::Layer>(static_cast<size_t>(count), layer);
  };
  return {.vision = layers(config.vision.depth, config.vision.width, config.vision.mlp),
          .prefix = layers(config.depth - 1, config.q_width(), config.prefix.mlp)};
}

std::string operand_name(const char* stage, const char* operand, int64_t layer) {
  return fmt::format("{}.{}.{}", stage, operand, layer);
}

void visit_maxima(OperandMaxima& maxima, const std::function<void(const std::string&, std::vector<float>&)>& f) {
  const auto visit = [&](const char* stage, std::vector<OperandMaxima::Layer>& layers) {
    for (size_t i = 0; i < layers.size(); ++i) {
      f(operand_name(stage, "attended", static_cast<int64_t>(i)), layers[i].attended);
      f(operand_name(stage, "hidden", static_cast<int64_t>(i)), layers[i].hidden);
    }
  };
  visit("vision", maxima.vision);
  visit("prefix", maxima.prefix);
}

// FNV-1a over what every training changes: the last projection.
std::string weights_mark(const Weights& weights) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const double value : to_doubles(weights.action_out.w)) {
    for (uint64_t bits = std::bit_cast<uint64_t>(value), i = 0; i < 8; ++i, bits >>= 8)
      hash = (hash ^ (bits & 0xffU)) * 0x100000001b3U;
  }
  return fmt::format("{:016x}", hash);
}

std::filesystem::path static_scales_file(const std::string& checkpoint) {
  const std::filesystem::path path(checkpoint);
  return (std::filesystem::is_directory(path) ? path : path.parent_path()) / "tendon_scales.safetensors";
}

void write_maxima(const OperandMaxima& maxima, const std::filesystem::path& path) {
  std::vector<SafetensorsSpec> specs;
  OperandMaxima all = maxima;
  visit_maxima(all, [&](const std::string& name, const std::vector<float>& values) {
    specs.push_back({name, DType::kF32, {std::ssize(values)}});
  });
  SafetensorsWriter writer(path, specs,
                           {{kObservations, std::to_string(maxima.observations)}, {kWeights, maxima.weights}});
  visit_maxima(all, [&](const std::string&, const std::vector<float>& values) {
    writer.append(std::span<const float>(values));
  });
  writer.finish();
}

OperandMaxima read_maxima(const std::filesystem::path& path, const ModelConfig& config) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  OperandMaxima maxima = no_maxima(config);
  visit_maxima(maxima, [&](const std::string& name, std::vector<float>& values) {
    const SafetensorsEntry* const entry = file.find(name);
    if (entry == nullptr || entry->dtype != DType::kF32 || entry->shape != Shape{std::ssize(values)}) {
      throw_bad_input(
          "{}: '{}' is {}, expected [{}] f32. Make the file for this model: tendon tune --calibrate.",
          file.description(), name,
          entry == nullptr ? "missing" : to_string(entry->shape) + " " + std::string(dtype_name(entry->dtype)),
          values.size());
    }
    std::copy_n(reinterpret_cast<const float*>(entry->data), values.size(), values.begin());
    for (const float value : values) {
      if (!(value >= 0.0F && std::isfinite(value)))
        throw_bad_input("{}: '{}' holds {}; a largest magnitude is neither negative nor infinite.", file.description(),
                        name, value);
    }
  });
  const std::string observations = find_or_empty(file.metadata(), kObservations);
  std::from_chars(observations.data(), observations.data() + observations.size(), maxima.observations);
  maxima.weights = find_or_empty(file.metadata(), kWeights);
  return maxima;
}

ColumnScales column_scales(std::span<const float> maxima, DType codes) {
  const float largest = std::ranges::max(maxima);
  ColumnScales columns;
  columns.scales.reserve(maxima.size());
  columns.factors.reserve(maxima.size());
  for (const float maximum : maxima) {
    const float share = largest > 0.0F ? std::sqrt(std::max(maximum / largest, kLeastColumn)) : 1.0F;
    columns.scales.push_back((largest > 0.0F ? largest : 1.0F) * share * kMargin / scaled_max(codes));
    columns.factors.push_back(1.0F / columns.scales.back());
  }
  return columns;
}

}  // namespace tendon
