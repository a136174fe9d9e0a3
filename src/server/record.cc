#include "server/record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "policy/files/file.h"
#include "server/clock.h"

namespace tendon {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxMessageBytes = size_t{1} << 30;
constexpr size_t kMaxIndexBytes = size_t{1} << 30;

fs::path file_of(const fs::path& directory, int64_t number, const char* what) {
  return directory / fmt::format("{:08}.{}.msgpack", number, what);
}

}  // namespace

CallRecorder::CallRecorder(const fs::path& directory, uint64_t seed, const LogSink& log)
    : directory_(directory), seed_(seed), log_(log) {
  std::error_code error;
  fs::create_directories(directory, error);
  const fs::path index = directory / "index.jsonl";
  if (fs::exists(index)) {
    throw_bad_input("'{}' holds a recording already. Choose another directory.", directory.string());
  }
  index_.open(index);
  if (!index_) throw_bad_input("cannot write '{}'. Check the directory and its rights.", index.string());
}

void CallRecorder::write(const fs::path& file, std::span<const std::byte> bytes) {
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (out.flush() || std::exchange(failed_, true)) return;
  log_warning(log_, "event=record_failed file=\"{}\"", file.string());
}

int64_t CallRecorder::request(int64_t client, std::span<const std::byte> message) {
  const std::lock_guard lock(mutex_);
  const int64_t number = next_++;
  open_[number] = {client, unix_now_s()};
  write(file_of(directory_, number, "request"), message);
  return number;
}

void CallRecorder::reply(int64_t number, int64_t draw, const std::string& message) {
  const std::lock_guard lock(mutex_);
  write(file_of(directory_, number, "reply"), std::as_bytes(std::span(message)));
  finish(number, draw, nullptr);
}

void CallRecorder::failure(int64_t number, const std::string& error) {
  const std::lock_guard lock(mutex_);
  finish(number, -1, &error);
}

void CallRecorder::finish(int64_t number, int64_t draw, const std::string* error) {
  const auto found = open_.find(number);
  if (found == open_.end()) return;  // a text frame, for instance, was no request
  nlohmann::ordered_json line = {{"n", number},
                                 {"client", found->second.client},
                                 {"received_unix_s", found->second.received_unix_s},
                                 {"seed", seed_},
                                 {"draw", nullptr},
                                 {"error", nullptr}};
  if (draw >= 0) line["draw"] = draw;
  if (error != nullptr) line["error"] = *error;
  index_ << line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) << '\n' << std::flush;
  open_.erase(found);
}

std::vector<RecordedCall> read_recording(const fs::path& directory) {
  const std::string index = read_small_file((directory / "index.jsonl").string(), kMaxIndexBytes, "recording's index");
  std::vector<RecordedCall> calls;
  size_t line_number = 0;
  for (size_t begin = 0; begin < index.size();) {
    const size_t end = std::min(index.find('\n', begin), index.size());
    const std::string_view line = std::string_view(index).substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    RecordedCall& call = calls.emplace_back();
    try {
      const nlohmann::json json = nlohmann::json::parse(line);
      call.number = json.at("n");
      call.seed = json.at("seed");
      if (!json.at("draw").is_null()) call.draw = json.at("draw").get<int64_t>();
      if (!json.at("error").is_null()) call.error = json.at("error");
    } catch (const nlohmann::json::exception& error) {
      throw_bad_input("line {} of '{}' is damaged: {}.", line_number, (directory / "index.jsonl").string(),
                      error.what());
    }
    call.request = read_small_file(file_of(directory, call.number, "request").string(), kMaxMessageBytes, "request");
    if (call.error.empty())
      call.reply = read_small_file(file_of(directory, call.number, "reply").string(), kMaxMessageBytes, "reply");
  }
  std::ranges::sort(calls, {}, &RecordedCall::number);
  return calls;
}

}  // namespace tendon
