// Synthetic inputs of a chosen size, by the rule of model/weights/synth.h: what bench, check and info run on.
#pragma once

#include <cstdint>
#include <vector>

#include <CLI/CLI.hpp>

#include "engine/engine.h"
#include "model/config.h"

namespace tendon::cli {

struct WorkloadOptions {
  int64_t views = 3;           // active cameras
  int64_t prompt_tokens = 20;  // real tokens; clamped to the checkpoint's budget
  int64_t batch = 1;

  void add_to(CLI::App& app);
};

// Owns the inputs that its samples point to.
class Workload {
 public:
  // `frame`: whose pictures, prompt, state and noise; another one has others.
  Workload(const ModelConfig& config, const WorkloadOptions& options, int64_t frame = 0);
  const std::vector<Sample>& samples() const { return samples_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }

 private:
  struct Inputs {
    std::vector<std::vector<uint8_t>> images;
    std::vector<int32_t> tokens;
    std::vector<float> state, noise;
  };
  int64_t prompt_tokens_;
  std::vector<Inputs> inputs_;
  std::vector<Sample> samples_;
};

}  // namespace tendon::cli
