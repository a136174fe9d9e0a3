// A tiny model behind the server, in the test's process.
#pragma once

#include <gmock/gmock.h>

#include <thread>

#include "../e2e/tiny.h"
#include "engine/noise.h"
#include "server/policy/example_request.h"
#include "server/policy/policy_model.h"
#include "server/server.h"
#include "wire/client.h"
#include "wire/message.h"

namespace tendon::test {

inline NormStats statistics(bool quantile, int width) {
  NormStats stats;
  for (NormEntry* entry : {&stats.state, &stats.actions}) {
    entry->mode = quantile ? NormMode::kQuantile : NormMode::kMeanStd;
    for (int i = 0; i < width; ++i) {
      entry->mean.push_back(0.1 - 0.02 * i);
      entry->std.push_back(0.5 + 0.1 * i);
      entry->q01.push_back(-1.0 - 0.1 * i);
      entry->q99.push_back(1.0 + 0.1 * i);
    }
  }
  stats.where = "test";
  return stats;
}

inline std::vector<double> actions_of(const Frame& frame) {
  EXPECT_FALSE(frame.is_text) << frame.bytes;
  if (frame.is_text) return {};
  const WireValue message = decode_message(std::as_bytes(std::span(frame.bytes)));
  return to_numbers(*find_key(*message.get_if<WireMap>(), "actions"), "actions");
}

// Policy and server over a tiny checkpoint; the worker runs on a thread of its own.
class Served {
 public:
  Served(const std::string& model, const std::string& preset, size_t max_batch = 1, DType precision = DType::kBf16,
         uint64_t seed = 0, std::optional<Chunking> chunking = {})
      : Served(make_backend("cpu", {.threads = 1, .device = 0}), data_dir() / model, preset, nullptr, max_batch,
               precision, seed, chunking) {}
  // With a tokenizer the clients' prompts count, else every request has the same three tokens.
  Served(std::unique_ptr<Backend> backend, const std::filesystem::path& checkpoint, const std::string& preset,
         const Tokenizer* tokenizer, size_t max_batch, DType precision, uint64_t seed, std::optional<Chunking> chunking,
         size_t frame_bytes = 0)
      : backend_(std::move(backend)), preset_(find_preset(preset)) {
    loaded_ = load_tiny(checkpoint, 4);
    EngineOptions options;
    options.precision = precision;
    options.steps = 2;
    options.chunking = chunking;
    options.frame_bytes = frame_bytes;
    options.prompt_lengths = serving_prompt_lengths(loaded_.config.max_token_len);
    for (const int64_t views : possible_views(preset_)) {
      for (const size_t size : batch_sizes_up_to(max_batch))
        options.prepared.push_back({static_cast<int64_t>(size), views});
    }
    options.prepared_only = true;  // field case 20: nothing is planned while a client waits
    engine_ = std::make_unique<Engine>(*backend_, loaded_.config, loaded_.weights, options);
    policy_.emplace(*engine_, preset_, statistics(preset_.variant == "pi05", preset_.robot->state_width), tokenizer);
    PolicyModelOptions model_options;
    if (tokenizer == nullptr) model_options.defaults.tokens = {2, 7, 11};
    model_options.defaults.run_parts = [this](int64_t count, const std::function<void(int64_t)>& part) {
      server_->run_parts()(count, part);
    };
    model_options.batch_sizes = batch_sizes_up_to(max_batch);
    model_options.seed = seed;
    model_.emplace(*policy_, metrics, model_options);
    model_->warm_up();
  }
  ~Served() { stop(); }

  void start(double max_wait_us = 0) {
    ServerOptions options;
    options.port = 0;
    options.max_wait_us = max_wait_us;
    server_ = std::make_unique<Server>(options);
    const std::string url = "ws://127.0.0.1:" + std::to_string(server_->port());
    url_ = url;
    thread_ = std::thread([this] { server_->run(*model_, metrics, WireWriter().map(0).take()); });
    for (int i = 0; i < 1000; ++i) {
      try {
        WireClient probe(url_);
        return;
      } catch (const Error&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }
  void stop() {
    if (!thread_.joinable()) return;
    server_->stop();
    thread_.join();
  }

  WireClient connect() const {
    WireClient client(url_);
    client.read();
    return client;
  }
  std::vector<float> noise(uint64_t number, uint64_t seed = 99) const {
    std::vector<float> values(static_cast<size_t>(loaded_.config.horizon * loaded_.config.action_dim));
    fill_noise(seed, number, values);
    return values;
  }
  std::string request(uint64_t number, std::span<const float> own_noise = {}, bool wrists = true, int height = 28,
                      int width = 28) const {
    return example_request(preset_, {.height = height,
                                     .width = width,
                                     .number = number,
                                     .optional_cameras = wrists,
                                     .noise = own_noise,
                                     .horizon = loaded_.config.horizon,
                                     .action_dim = loaded_.config.action_dim});
  }
  // What the policy answers without any server.
  std::vector<double> expected(const std::string& message, std::span<const float> noise) {
    RequestDefaults defaults{
        .prompt = {}, .tokens = {2, 7, 11}, .horizon = loaded_.config.horizon, .action_dim = loaded_.config.action_dim};
    const RobotRequest request = read_request(decode_message(std::as_bytes(std::span(message))), preset_, defaults);
    return policy_->infer(request.observation, noise).actions;
  }
  Engine& engine() { return *engine_; }
  const std::string& url() const { return url_; }

  Metrics metrics{ServerInfo{}};

 private:
  std::unique_ptr<Backend> backend_;
  const Preset& preset_;
  LoadedModel loaded_;
  std::unique_ptr<Engine> engine_;
  std::optional<Policy> policy_;
  std::optional<PolicyModel> model_;
  std::unique_ptr<Server> server_;
  std::string url_;
  std::thread thread_;
};

}  // namespace tendon::test
