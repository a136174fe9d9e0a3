// A client of `tendon serve`, and of openpi's policy server, for robot controllers in C++: observations out, chunks of
// actions in, and a queue that turns chunks into one action per control step. Link tendon_client.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tendon {

// The server refused a request (its message) or the connection failed (address and reason).
class ClientError : public std::runtime_error {
 public:
  ClientError(const std::string& message, bool from_server) : std::runtime_error(message), from_server_(from_server) {}
  // True: the server answered with an error, after which it closes the connection.
  bool from_server() const { return from_server_; }

 private:
  bool from_server_;
};

// What a reply holds.
struct PolicyReply {
  int64_t horizon = 0, width = 0;
  std::vector<double> actions;  // (horizon, width), the robot's units
  double infer_ms = 0;          // the model's call
  double server_ms = 0;         // the server's part, without waiting
  double queue_ms = 0;          // waiting in the server; 0 from servers that do not tell

  std::span<const double> row(int64_t i) const {
    return std::span(actions).subspan(static_cast<size_t>(i * width), static_cast<size_t>(width));
  }
};

// An observation, under the keys of the server's preset. Every function copies what it is given; a key that is set
// again is replaced. "map/name" keys of presets with a map of cameras (ALOHA) are given as picture_in("images",
// "cam_high", …).
class PolicyRequest {
 public:
  PolicyRequest();
  ~PolicyRequest();
  PolicyRequest(PolicyRequest&&) noexcept;
  PolicyRequest& operator=(PolicyRequest&&) noexcept;

  // RGB bytes: (height, width, 3), or (3, height, width) when `planar` (ALOHA). Throws std::invalid_argument when the
  // number of bytes is another.
  PolicyRequest& picture(std::string_view key, std::span<const uint8_t> rgb, int height, int width,
                         bool planar = false);
  PolicyRequest& picture_in(std::string_view map, std::string_view name, std::span<const uint8_t> rgb, int height,
                            int width, bool planar = true);
  PolicyRequest& numbers(std::string_view key, std::span<const double> values);  // (n) float64
  PolicyRequest& text(std::string_view key, std::string_view value);
  PolicyRequest& prompt(std::string_view value) { return text("prompt", value); }
  // Real-time chunking (the server needs --rtc): `start` rows of `last` were executed before this observation, and
  // about `delay` more will be before the answer is there.
  PolicyRequest& continue_from(const PolicyReply& last, int64_t start, int64_t delay);

  std::string encode() const;  // the msgpack message

 private:
  struct Entries;
  std::unique_ptr<Entries> entries_;
};

struct PolicyClientOptions {
  std::string api_key = {};
  double timeout_s = 60;  // of every step
};

// One connection. Not to be used by two threads at once; ActionQueue is what threads share.
class PolicyClient {
 public:
  // `url`: ws://HOST:PORT. Connects and reads the server's metadata. Throws ClientError.
  explicit PolicyClient(const std::string& url, const PolicyClientOptions& options = {});
  ~PolicyClient();
  PolicyClient(PolicyClient&&) noexcept;

  // Whether the server offers real-time chunking; the horizon of its chunks (0 from other servers).
  bool continues_chunks() const;
  int64_t horizon() const;

  // Sends and waits for the answer. Throws ClientError; after it, make a new client.
  PolicyReply infer(const PolicyRequest& request);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Actions with the times they are due: the control thread takes one each step, another thread puts chunks. Safe for any
// number of threads.
class ActionQueue {
 public:
  using Clock = std::chrono::steady_clock;

  // `period`: of the control loop. Throws std::invalid_argument unless it is above 0.
  explicit ActionQueue(Clock::duration period);
  ~ActionQueue();

  // Row i is due at `observed_at` + i periods; rows that are due before now are never executed. Replaces what was
  // waiting.
  void put(PolicyReply chunk, Clock::time_point observed_at);

  struct Next {
    std::vector<double> action;  // empty before the first chunk
    bool is_held = false;        // no row is due any more: the last one again, until a chunk comes
    int64_t row = 0;             // of its chunk
    int64_t left = 0;            // rows behind this one
  };
  // What to do at `now`: the row whose period has begun and not ended.
  Next next(Clock::time_point now);

  // The chunk in use and how many of its rows were due before `at`; nothing before the first chunk.
  struct InUse {
    PolicyReply chunk;
    int64_t executed = 0;  // at most the horizon
  };
  std::optional<InUse> in_use(Clock::time_point at) const;

  int64_t held_steps() const;  // so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tendon
