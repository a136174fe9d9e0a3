// Requests and replies kept on disk, to be looked at and run again.
//
// A recording is a directory: `<n>.request.msgpack` and `<n>.reply.msgpack` hold the messages as they were on the wire
// (n has eight digits, in the order of arrival), and `index.jsonl` one JSON object a line:
//   {"n", "client", "received_unix_s", "seed", "draw", "error"}
// `draw` numbers the noise under `seed` (engine/noise.h); null when the request brought noise or failed. `error` is the
// text that the client got, or null.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"

namespace tendon {

class CallRecorder {
 public:
  // Makes `directory`; throws Error(kBadInput) if it cannot, or if it holds a recording already.
  CallRecorder(const std::filesystem::path& directory, uint64_t seed, const LogSink& log = {});

  // Any thread. What cannot be written is reported once in the log, and serving goes on.
  int64_t request(int64_t client, std::span<const std::byte> message);  // the number of the request
  void reply(int64_t number, int64_t draw, const std::string& message);
  void failure(int64_t number, const std::string& error);

 private:
  struct Open {
    int64_t client = 0;
    double received_unix_s = 0;
  };
  void write(const std::filesystem::path& file, std::span<const std::byte> bytes);
  void finish(int64_t number, int64_t draw, const std::string* error);

  std::filesystem::path directory_;
  uint64_t seed_;
  LogSink log_;
  std::mutex mutex_;
  std::ofstream index_;
  std::map<int64_t, Open> open_;
  int64_t next_ = 0;
  bool failed_ = false;
};

struct RecordedCall {
  int64_t number = 0;
  uint64_t seed = 0;
  std::optional<int64_t> draw;
  std::string error;           // empty: answered
  std::string request, reply;  // messages; the reply is empty when there was an error
};

// All calls of a recording in order. Throws Error(kBadInput) naming what is missing or damaged.
std::vector<RecordedCall> read_recording(const std::filesystem::path& directory);

}  // namespace tendon
