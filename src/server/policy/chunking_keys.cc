#include "server/policy/chunking_keys.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace tendon {
namespace {

constexpr std::string_view kActions = "prev_actions";
constexpr std::string_view kStart = "prev_actions_start";
constexpr std::string_view kDelay = "prev_actions_d";
constexpr std::string_view kTailDelay = "inference_delay";  // prev_actions holds only what is not executed yet
constexpr std::string_view kOwnKeys[] = {kActions, kStart, kDelay, kTailDelay};
constexpr std::string_view kForeignKeys[] = {"rtc", "rtc_guidance_chunk"};

int64_t read_count(const WireMap& map, std::string_view key) {
  const WireValue& value = *find_key(map, key);
  const std::vector<double> numbers = to_numbers(value, key);
  if (numbers.size() != 1 || numbers[0] != std::floor(numbers[0]) || std::abs(numbers[0]) > 1e9)
    throw_bad_input("observation key '{}' must be a whole number, but it is {}.", key, value.describe());
  return static_cast<int64_t>(numbers[0]);
}

}  // namespace

std::optional<PreviousActions> read_previous(const WireMap& map, const Robot& robot, bool offered) {
  std::vector<std::string_view> given;
  const auto is_given = [&](std::string_view key) { return find_key(map, key) != nullptr; };
  std::ranges::copy_if(kOwnKeys, std::back_inserter(given), is_given);
  std::ranges::copy_if(kForeignKeys, std::back_inserter(given), is_given);
  if (given.empty()) return {};
  if (!offered) {
    throw_bad_input("the observation has the key '{}', but real-time chunking is not offered by this server.",
                    given.front());
  }
  const std::vector<std::string_view> whole = {kActions, kStart, kDelay};
  const std::vector<std::string_view> tail = {kActions, kTailDelay};
  if (given != whole && given != tail) {
    throw_bad_input(
        "the observation has the keys {} for real-time chunking; expected {} (the last reply's actions, the rows "
        "executed since, the rows that will be executed until the answer), or {} (the rows not executed yet).",
        fmt::join(given, ", "), fmt::join(whole, ", "), fmt::join(tail, ", "));
  }
  const WireValue& actions = *find_key(map, kActions);
  const std::vector<int64_t> shape = shape_of(actions, kActions);
  if (shape.size() != 2 || shape[1] != robot.action_width) {
    throw_bad_input("observation key '{}' has the shape ({}); expected (rows, {}), as a reply's actions.", kActions,
                    fmt::join(shape, ", "), robot.action_width);
  }
  PreviousActions previous{.actions = to_numbers(actions, kActions), .rows = shape[0]};
  if (given == whole) previous.start = read_count(map, kStart);
  previous.delay = read_count(map, given == whole ? kDelay : kTailDelay);
  return previous;
}

void write_overlap(WireWriter& reply, const ChunkOverlap& overlap) {
  reply.text("rtc_active").boolean(true).text("rtc_d_eff").integer(overlap.delay);
  reply.text("rtc_start").integer(overlap.start).text("rtc_overlap").integer(overlap.overlap);
  reply.text("rtc_prefix_attention_horizon").integer(overlap.overlap);
}

size_t offer_entries(const ChunkingOffer& offer) {
  if (offer.mode.empty()) return 1;
  return 3 + (offer.mode == "guided" ? 2 : 0) + (offer.max_delay ? 1 : 0);
}

void write_offer(WireWriter& metadata, const ChunkingOffer& offer) {
  metadata.text("rtc").boolean(!offer.mode.empty());
  if (offer.mode.empty()) return;
  metadata.text("rtc_mode").text(offer.mode).text("rtc_keys").list(std::size(kOwnKeys));
  for (const std::string_view key : kOwnKeys) metadata.text(key);
  if (offer.mode == "guided")
    metadata.text("rtc_schedule").text(offer.schedule).text("rtc_max_guidance").number(offer.max_guidance);
  if (offer.max_delay) metadata.text("rtc_max_delay").integer(*offer.max_delay);
}

}  // namespace tendon
