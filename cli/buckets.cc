#include "buckets.h"

#include <charconv>

#include <fmt/format.h>

#include "base/check.h"

namespace tendon::cli {
namespace {

PreparedBatch parse_bucket(const std::string& text) {
  std::vector<int64_t> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end && numbers.size() < 4) {
    int64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc() || (next != end && *next != 'x') || next + 1 == end) break;
    numbers.push_back(number);
    at = next == end ? end : next + 1;
  }
  if (at != end || numbers.size() < 2 || numbers.size() > 3)
    throw_bad_use("--buckets {}: write VIEWSxTOKENS or VIEWSxTOKENSxBATCH, for instance 3x20 or 2x48x4.", text);
  const int64_t batch = numbers.size() == 3 ? numbers[2] : 1;
  if (numbers[0] < 1 || numbers[0] > 3 || numbers[1] < 1 || batch < 1 || batch > 64)
    throw_bad_use("--buckets {}: 1 to 3 views, at least one token, and batches of 1 to 64.", text);
  return {.batch = batch, .views = numbers[0], .prompt_tokens = numbers[1]};
}

// Of a bucket of so many views each.
int64_t views_of(const Bucket& bucket) { return bucket.images / bucket.batch; }
int64_t tokens_of(const Bucket& bucket, const ModelConfig& config) {
  return bucket.prefix_rows - views_of(bucket) * config.vision.tokens();
}

}  // namespace

void BucketOptions::add_to(CLI::App& app) {
  app.add_option("--buckets", buckets,
                 "plans made before the first call: VIEWSxTOKENS or VIEWSxTOKENSxBATCH, one or several (3x20 2x48x4)")
      ->expected(1, -1);
}

std::vector<PreparedBatch> BucketOptions::parse() const {
  std::vector<PreparedBatch> prepared;
  for (const std::string& text : buckets) prepared.push_back(parse_bucket(text));
  return prepared;
}

std::string to_string(const Bucket& bucket, const ModelConfig& config) {
  return fmt::format("{} views × {} tokens, batch {} ({} prefix rows)", views_of(bucket), tokens_of(bucket, config),
                     bucket.batch, bucket.prefix_rows);
}

nlohmann::ordered_json describe_buckets(const Engine& engine) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Bucket& bucket : engine.prepared_buckets()) {
    list.push_back({{"views", views_of(bucket)},
                    {"tokens", tokens_of(bucket, engine.config())},
                    {"batch", bucket.batch},
                    {"prefix_rows", bucket.prefix_rows}});
  }
  return list;
}

}  // namespace tendon::cli
