#include "workload.h"

#include <algorithm>
#include <string>

#include "model/weights/synth.h"

namespace tendon::cli {

void WorkloadOptions::add_to(CLI::App& app) {
  app.add_option("--views", views, "active cameras")->check(CLI::Range(1, 3))->capture_default_str();
  app.add_option("--prompt-tokens", prompt_tokens, "real prompt tokens (at most the checkpoint's budget)")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--batch", batch, "samples of one call")->check(CLI::Range(1, 64))->capture_default_str();
}

Workload::Workload(const ModelConfig& config, const WorkloadOptions& options, int64_t frame)
    : prompt_tokens_(std::min(options.prompt_tokens, config.max_token_len)) {
  for (int64_t b = frame * options.batch; b < (frame + 1) * options.batch; ++b) {
    Inputs inputs;
    for (const std::string_view camera : kCameraSlotNames) {
      inputs.images.push_back(synthetic_image(std::string(camera), config.vision.image_size, b));
    }
    inputs.tokens = synthetic_prompt(prompt_tokens_, config.vocab, b);
    inputs.state = synthetic_state(config.action_dim, b);
    inputs.noise = synthetic_noise(config.horizon, config.action_dim, b);
    inputs_.push_back(std::move(inputs));
  }
  for (const Inputs& inputs : inputs_) {
    Sample sample;
    for (size_t c = 0; c < inputs.images.size(); ++c) {
      sample.cameras.push_back({inputs.images[c].data(), DType::kU8, static_cast<int64_t>(c) < options.views});
    }
    sample.tokens = inputs.tokens;
    sample.state = inputs.state;
    sample.noise = inputs.noise;
    samples_.push_back(std::move(sample));
  }
}

}  // namespace tendon::cli
