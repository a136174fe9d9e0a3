// A policy as the server's model: messages in openpi's keys, noise by request number, batches of equal views.
#pragma once

#include <cstdint>

#include "server/inference_queue.h"
#include "server/policy/observation.h"

namespace tendon {

struct PolicyModelOptions {
  RequestDefaults defaults;
  std::vector<size_t> batch_sizes = {1};
  uint64_t seed = 0;
};

class PolicyModel : public Model {
 public:
  // All must outlive the model. `log` gets a line, at most every ten seconds, when a prompt was cut.
  PolicyModel(Policy& policy, Metrics& metrics, const PolicyModelOptions& options, const LogSink& log = {});

  // Runs every batch size with every number of views that the preset allows, so that the first request is not slower
  // than others. From the worker's thread. Throws what planning throws.
  void warm_up();

  std::shared_ptr<Intake> begin() override;
  std::unique_ptr<Job> prepare(std::span<const std::byte> message, Intake* intake) override;
  std::vector<Outcome> infer(std::span<Job* const> batch) override;
  std::vector<size_t> batch_sizes() const override { return options_.batch_sizes; }
  void idle() override;

 private:
  void report_cut(int tokens);

  Policy& policy_;
  Metrics& metrics_;
  PolicyModelOptions options_;
  LogSink log_;
  uint64_t drawn_ = 0;  // requests that got noise; the k-th one gets the k-th draw of the seed
  std::mutex cut_mutex_;
  double last_cut_s_ = -1e9;
  uint64_t cut_ = 0;
  double last_sensors_s_ = -1e9;
  std::optional<double> last_energy_j_;
  uint64_t inferences_ = 0, inferences_at_energy_ = 0;
};

// The numbers of views that requests of this preset can have.
std::vector<int64_t> possible_views(const Preset& preset);

// 1, 2, 4, … and `max_batch` itself.
std::vector<size_t> batch_sizes_up_to(size_t max_batch);

}  // namespace tendon
