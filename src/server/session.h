// One connection: an HTTP request, or a WebSocket client with its requests in order.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "server/server.h"

namespace tendon {

// What all sessions share; outlives them.
struct SessionContext {
  const ServerOptions& options;
  Model& model;
  InferenceQueue& queue;
  Metrics& metrics;
  const LogSink& log;
  const std::string& metadata;
  boost::asio::any_io_executor pool;  // all I/O threads
  std::atomic<int64_t> next_client = 1;
};

class Session {
 public:
  virtual ~Session() = default;
  // Any thread: answer what was received, then close with 1001.
  virtual void drain() = 0;
  // Any thread: whether a request is waiting for its answer.
  virtual bool is_busy() const = 0;
  // Any thread: whether the connection is closed.
  virtual bool is_over() const = 0;
  // When no I/O thread runs any more: gives up what the connection holds.
  virtual void release() = 0;
};

// Serves the connection on its socket's executor, a strand, until either side ends it. The session keeps itself alive
// meanwhile.
std::shared_ptr<Session> start_session(boost::asio::ip::tcp::socket socket, SessionContext& context);

}  // namespace tendon
