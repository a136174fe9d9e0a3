// One golden case of tests/data/tiny_*: inputs and reference values computed by LeRobot's classes
// (tests/data/README.md).
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "engine/engine.h"

namespace tendon::test {

inline std::filesystem::path data_dir() { return TENDON_TEST_DATA; }

// A tensor of the fixture as floats.
struct Array {
  std::vector<float> values;
  Shape shape;
  int64_t cols() const { return shape[-1]; }
  int64_t rows() const { return std::ssize(values) / cols(); }
  const float* row(int64_t r) const { return values.data() + r * cols(); }
};

class Fixture {
 public:
  explicit Fixture(const std::filesystem::path& path) : file_(SafetensorsFile::open(path)) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  Array get(const std::string& name) const {
    const Tensor tensor = file_.tensor(name);
    const std::vector<double> wide = to_doubles(tensor);
    return {{wide.begin(), wide.end()}, tensor.shape.rank() == 0 ? Shape{1} : tensor.shape};
  }

 private:
  SafetensorsFile file_;
};

// The inputs of a case as engine samples; owns what the samples point to.
struct CaseInputs {
  int64_t batch = 0, horizon = 0, action_dim = 0, slots = 3, cap = 0;
  Array camera_mask, tokens, token_mask, noise, state;
  std::vector<std::vector<uint8_t>> images;  // [camera] all samples
  std::vector<std::vector<int32_t>> valid_tokens;
  int64_t image_values = 0;

  explicit CaseInputs(const Fixture& fixture)
      : camera_mask(fixture.get("in/camera_mask")),
        tokens(fixture.get("in/tokens")),
        token_mask(fixture.get("in/token_mask")),
        noise(fixture.get("in/noise")) {
    batch = noise.shape[0];
    horizon = noise.shape[1];
    action_dim = noise.shape[2];
    cap = tokens.shape[1];
    if (fixture.has("in/state")) state = fixture.get("in/state");
    for (const std::string_view slot : kCameraSlotNames) {
      const Array image = fixture.get("in/image." + std::string(slot));
      image_values = std::ssize(image.values) / batch;
      images.emplace_back(image.values.begin(), image.values.end());
    }
    for (int64_t b = 0; b < batch; ++b) {
      std::vector<int32_t> valid;
      for (int64_t t = 0; t < cap; ++t) {
        if (token_mask.row(b)[t] != 0) valid.push_back(static_cast<int32_t>(tokens.row(b)[t]));
      }
      valid_tokens.push_back(std::move(valid));
    }
  }

  bool camera_active(int64_t b, int64_t camera) const { return camera_mask.row(b)[camera] != 0; }

  std::vector<Sample> samples(const float* noise_values) const {
    std::vector<Sample> result;
    const auto per_sample = static_cast<size_t>(horizon * action_dim);
    for (int64_t b = 0; b < batch; ++b) {
      Sample sample;
      for (int64_t c = 0; c < slots; ++c) {
        sample.cameras.push_back(
            {images[static_cast<size_t>(c)].data() + b * image_values, DType::kU8, camera_active(b, c)});
      }
      sample.tokens = valid_tokens[static_cast<size_t>(b)];
      if (!state.values.empty()) sample.state = {state.row(b), static_cast<size_t>(action_dim)};
      sample.noise = {noise_values + static_cast<size_t>(b) * per_sample, per_sample};
      result.push_back(std::move(sample));
    }
    return result;
  }
};

// How far `got` is from `want`.
struct Distance {
  double max_abs = 0, dot = 0, got2 = 0, want2 = 0, diff2 = 0;

  void add(const float* got, const float* want, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const double g = got[i];
      const double w = want[i];
      const double d = g - w;
      max_abs = std::isnan(d) ? d : std::max(max_abs, std::abs(d));
      dot += g * w;
      got2 += g * g;
      want2 += w * w;
      diff2 += d * d;
    }
  }
  double relative() const { return std::sqrt(diff2 / std::max(want2, 1e-300)); }
};

// A named value of the plan as floats.
inline std::vector<float> read_value(const Plan& plan, const std::string& name) {
  const Tensor& tensor = plan.tensor(name);
  std::vector<char> raw(tensor.bytes());
  plan.read(name, raw.data(), raw.size());
  Tensor host = tensor;
  host.data = raw.data();
  const std::vector<double> wide = to_doubles(host);
  return {wide.begin(), wide.end()};
}

}  // namespace tendon::test
