// A checkpoint on disk: weights under canonical names whatever tool wrote them, and the config beside them.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "checkpoint/checkpoint_config.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_source.h"

namespace tendon {

struct IgnoredTensor {
  std::string stored_name;
  std::string reason;
};

// Owns the mapped files; tensors are views into them. Accepts every naming of key_styles.h; weights are F32, BF16 or
// F16, mixed at will.
class Checkpoint final : public TensorSource {
 public:
  // `path` is a directory that holds model.safetensors, or model.safetensors.index.json and its shards (the single file
  // wins, which is logged), or the path of one .safetensors file. config.json of the same directory is read too.
  // Throws Error(kBadInput) naming the file or tensor at fault: nothing to load, a missing shard, a broken file or
  // config (see safetensors.h, checkpoint_config.h), a weight of another dtype, LoRA leftovers, observation-history
  // weights, two stored tensors for one canonical name, the transformers-native naming.
  static std::unique_ptr<Checkpoint> open(const std::filesystem::path& path, const LogSink& log = {});

  // From files that are open already; the first one's description names the checkpoint.
  static std::unique_ptr<Checkpoint> from_files(std::vector<SafetensorsFile> files, CheckpointConfig config,
                                                const LogSink& log = {});

  const std::vector<std::string>& names() const override { return names_; }
  bool contains(std::string_view name) const override { return weights_.find(name) != weights_.end(); }
  Tensor tensor(std::string_view name) const override;
  const std::string& description() const override { return description_; }

  // The name in the file of a canonical name, for messages. Throws Error(kBadInput) when there is none.
  const std::string& stored_name(std::string_view name) const;
  // Starts reading the pages of a weight; returns at once.
  void prefetch(std::string_view name) const;

  // As given to open(); empty for from_files.
  const std::filesystem::path& path() const { return path_; }
  // Where config.json, assets/ and the processor files lie; empty for from_files.
  const std::filesystem::path& directory() const { return directory_; }
  const CheckpointConfig& config() const { return config_; }

  // Stored tensors that no engine needs (the expert's lm_head, position_ids buffers, ...), sorted by stored name.
  const std::vector<IgnoredTensor>& ignored() const { return ignored_; }
  // Statistics kept among the weights by old LeRobot policies: "normalize_inputs.buffer_observation_state.mean" →
  // values.
  const std::map<std::string, std::vector<double>>& stats_buffers() const { return stats_buffers_; }
  // Stored dtypes of the weights, for instance "bf16 (700 tensors), f32 (77 tensors)".
  std::string dtype_summary() const;

 private:
  struct Weight {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };
  using Weights = std::map<std::string, Weight, std::less<>>;

  Checkpoint() = default;
  void index(const LogSink& log);
  void add_weight(std::string canonical, Weight weight);
  void ignore(std::string_view canonical, std::string reason);
  void settle_embedding(const LogSink& log);
  void settle_time_mlp();
  void settle_state_proj();
  void check_dtypes() const;
  const Weight& weight(std::string_view name) const;

  std::filesystem::path path_;
  std::filesystem::path directory_;
  std::string description_;
  CheckpointConfig config_;
  std::vector<SafetensorsFile> files_;
  Weights weights_;
  std::vector<std::string> names_;
  std::vector<IgnoredTensor> ignored_;
  std::map<std::string, std::vector<double>> stats_buffers_;
};

// Which of the two models the tensors belong to, whatever path or config say: π0.5 has time_mlp_in and an adaptive
// final expert norm (norm.dense.weight); π0 has state_proj, action_time_mlp_in and a plain final norm. Throws
// Error(kBadInput) that lists the tensors seen and not seen when the evidence is for neither or for both.
Variant detect_variant(const TensorSource& source);

// detect_variant, and Error(kBadInput) when the config's claim or the user's option (given if not empty) contradicts
// it.
Variant checkpoint_variant(const Checkpoint& checkpoint, std::optional<Variant> option = {});

// The shard files of a model.safetensors.index.json: tensor name → file name. Throws Error(kBadInput) on malformed text
// or on file names that are not plain names.
std::map<std::string, std::string> parse_shard_index(std::string_view text, const std::string& where);

}  // namespace tendon
