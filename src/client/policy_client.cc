#include "base/check.h"
#include "tendon/client.hpp"
#include "wire/client.h"
#include "wire/message.h"

namespace tendon {
namespace {

// Turns the library's errors into the client's.
template <class Call>
auto translated(const Call& call) {
  try {
    return call();
  } catch (const Error& error) {
    throw ClientError(error.what(), false);
  }
}

const WireMap& map_of(const WireValue& message, const char* what) {
  const auto* map = message.get_if<WireMap>();
  if (map == nullptr) throw_bad_input("the server's {} is no map, but {}.", what, message.describe());
  return *map;
}

// 0 where there is no such number.
double number_in(const WireMap& map, std::string_view group, std::string_view key) {
  const WireValue* const inner = find_key(map, group);
  const auto* entries = inner == nullptr ? nullptr : inner->get_if<WireMap>();
  const WireValue* const value = entries == nullptr ? nullptr : find_key(*entries, key);
  return value == nullptr ? 0.0 : to_numbers(*value, key).at(0);
}

PolicyReply decode_reply(const std::string& bytes) {
  const WireValue message = decode_message(std::as_bytes(std::span(bytes)));
  const WireMap& map = map_of(message, "reply");
  const WireValue* const actions = find_key(map, "actions");
  if (actions == nullptr) throw_bad_input("the server's reply has no 'actions'.");
  const std::vector<int64_t> shape = shape_of(*actions, "actions");
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1)
    throw_bad_input("the server's 'actions' must be a matrix (horizon, width), but they are {}.", actions->describe());
  return {.horizon = shape[0],
          .width = shape[1],
          .actions = to_numbers(*actions, "actions"),
          .infer_ms = number_in(map, "policy_timing", "infer_ms"),
          .server_ms = number_in(map, "server_timing", "infer_ms"),
          .queue_ms = number_in(map, "server_timing", "queue_ms")};
}

}  // namespace

struct PolicyClient::State {
  WireClient wire;
  bool continues_chunks = false;
  int64_t horizon = 0;
};

PolicyClient::PolicyClient(const std::string& url, const PolicyClientOptions& options) {
  translated([&] {
    state_.reset(new State{WireClient(url, {.api_key = options.api_key, .timeout_s = options.timeout_s})});
    const Frame frame = state_->wire.read();
    if (frame.is_text) throw ClientError(frame.bytes, true);
    const WireValue metadata = decode_message(std::as_bytes(std::span(frame.bytes)));
    const WireMap& map = map_of(metadata, "metadata");
    state_->continues_chunks = number_in(map, "tendon", "rtc") != 0;
    state_->horizon = static_cast<int64_t>(number_in(map, "tendon", "horizon"));
  });
}

PolicyClient::~PolicyClient() = default;
PolicyClient::PolicyClient(PolicyClient&&) noexcept = default;

bool PolicyClient::continues_chunks() const { return state_->continues_chunks; }
int64_t PolicyClient::horizon() const { return state_->horizon; }

PolicyReply PolicyClient::infer(const PolicyRequest& request) {
  return translated([&] {
    state_->wire.write(request.encode());
    const Frame frame = state_->wire.read();
    if (frame.is_text) throw ClientError(frame.bytes, true);
    return decode_reply(frame.bytes);
  });
}

}  // namespace tendon
