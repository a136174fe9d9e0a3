// --buckets: plans made before the first call.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "engine/engine.h"

namespace tendon::cli {

struct BucketOptions {
  std::vector<std::string> buckets;

  void add_to(CLI::App& app);
  // Throws Error(kBadUse) for a word that is not VIEWSxTOKENS or VIEWSxTOKENSxBATCH.
  std::vector<PreparedBatch> parse() const;
};

// "3 views × 20 tokens, batch 1" for lists of those that are prepared.
std::string to_string(const Bucket& bucket, const ModelConfig& config);
nlohmann::ordered_json describe_buckets(const Engine& engine);

}  // namespace tendon::cli
