// A server whose model answers with what the request holds, and waits when it is told to.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "raw_client.h"
#include "server/server.h"
#include "wire/message.h"

namespace tendon::test {

// Requests: {"x": number, "wait": any, "fail": text, "pad": any}. The actions are (3, 2), all x.
struct EchoJob : Job {
  double x = 0;
  bool waits = false;
  std::string failure;
};

inline std::string echo_request(double x, bool waits = false) {
  WireWriter writer;
  writer.map(waits ? 2 : 1).text("x").number(x);
  if (waits) writer.text("wait").boolean(true);
  return writer.take();
}

inline std::string padded_request(double x, size_t bytes, bool waits = false) {
  const std::vector<std::byte> pad(bytes);
  WireWriter writer;
  writer.map(waits ? 3 : 2).text("x").number(x).text("pad").bytes(pad);
  if (waits) writer.text("wait").boolean(true);
  return writer.take();
}

class EchoModel : public Model {
 public:
  std::unique_ptr<Job> prepare(std::span<const std::byte> bytes, Intake*) override {
    const WireValue message = decode_message(bytes);
    const auto* map = message.get_if<WireMap>();
    if (map == nullptr || find_key(*map, "x") == nullptr) throw_bad_input("the observation lacks the key 'x'.");
    auto job = std::make_unique<EchoJob>();
    job->x = to_numbers(*find_key(*map, "x"), "x").at(0);
    job->waits = find_key(*map, "wait") != nullptr;
    if (const WireValue* const failure = find_key(*map, "fail")) job->failure = to_text(*failure, "fail");
    return job;
  }

  std::vector<Outcome> infer(std::span<Job* const> batch) override {
    std::vector<Outcome> outcomes(batch.size());
    {
      const std::lock_guard lock(mutex_);
      batches_.push_back(batch.size());
    }
    for (size_t i = 0; i < batch.size(); ++i) {
      const auto& job = static_cast<const EchoJob&>(*batch[i]);
      if (job.waits) {
        std::unique_lock lock(mutex_);
        ++waiting_;
        changed_.notify_all();
        changed_.wait(lock, [&] { return open_; });
        --waiting_;
      }
      if (!job.failure.empty()) throw Error(ErrorKind::kDevice, job.failure);
      outcomes[i].chunk.horizon = 3;
      outcomes[i].chunk.width = 2;
      outcomes[i].chunk.actions.assign(6, job.x);
      outcomes[i].model_us = 1000;
    }
    return outcomes;
  }
  std::vector<size_t> batch_sizes() const override { return {1, 2, 4}; }

  // Blocks until a request waits in the model.
  void await_waiting() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return waiting_ > 0; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  std::vector<size_t> batches() {
    const std::lock_guard lock(mutex_);
    return batches_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0;
  bool open_ = false;
  std::vector<size_t> batches_;
};

class EchoServer {
 public:
  explicit EchoServer(ServerOptions options = {}) {
    options.port = 0;
    server_ = std::make_unique<Server>(options);
    port_ = server_->port();
    thread_ = std::thread([this] { server_->run(model, metrics, WireWriter().map(0).take()); });
    while (!Socket(port_).connected()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~EchoServer() { stop(); }
  void stop() {
    model.open();
    begin_stop();
    if (thread_.joinable()) thread_.join();
  }
  void begin_stop() { server_->stop(); }
  int port() const { return port_; }

  EchoModel model;
  Metrics metrics{ServerInfo{}};

 private:
  std::unique_ptr<Server> server_;
  int port_ = 0;
  std::thread thread_;
};

// The x of a reply, whose frame is checked.
inline double answer(const RawFrame& frame) {
  EXPECT_EQ(frame.opcode, kBinary) << frame.payload;
  if (frame.opcode != kBinary) return -1;
  const WireValue message = decode_message(std::as_bytes(std::span(frame.payload)));
  const auto* map = message.get_if<WireMap>();
  const WireValue* const actions = map == nullptr ? nullptr : find_key(*map, "actions");
  const auto* array = actions == nullptr ? nullptr : actions->get_if<WireArray>();
  EXPECT_NE(array, nullptr);
  if (array == nullptr) return -1;
  EXPECT_EQ(array->dtype_text(), "<f8");
  EXPECT_EQ(array->shape, (std::vector<int64_t>{3, 2}));
  return to_numbers(*actions, "actions").at(5);
}

// A client that has read its metadata.
inline RawClient ready_client(const EchoServer& server) {
  RawClient client(server.port());
  EXPECT_EQ(client.read().payload, "\x80");
  return client;
}

// Waits until `condition` holds, at most ten seconds.
template <class Condition>
bool eventually(const Condition& condition) {
  const Clock::time_point start = Clock::now();
  while (!condition()) {
    if (seconds_since(start) > 10) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace tendon::test
