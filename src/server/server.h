// The policy server: openpi's WebSocket protocol and a few HTTP pages on one port.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/shared_work.h"
#include "server/inference_queue.h"

namespace tendon {

class CallRecorder;

struct ServerOptions {
  std::string host = "127.0.0.1";  // a numeric address or "localhost"
  int port = 8000;                 // 0: any free one
  std::string api_key = {};        // empty: no key is asked for
  int io_threads = 0;              // 0: two, more where there are eight cores or more
  int resize_threads = 0;          // of those, that may work on one picture; 0: all
  size_t max_message_bytes = size_t{256} << 20;
  size_t max_clients = 256;
  size_t max_pending = 16;        // messages of one client read ahead of its answers
  double handshake_s = 10;        // for the HTTP request, and for closing
  double ping_s = 20;             // between pings to a client
  double client_timeout_s = 600;  // a client that sends nothing, not even a pong, for so long is dropped
  double drain_s = 120;           // at a stop: for requests that were received already
  double max_wait_us = 0;         // a request waits so long for others of its batch
  bool log_requests = false;
  CallRecorder* recorder = nullptr;  // keeps requests and replies when given
};

class Server {
 public:
  // Takes the address and port at once, but does not listen: connections are refused until run(). Throws
  // Error(kBadInput) naming host and port when they cannot be had.
  explicit Server(const ServerOptions& options, const LogSink& log = {});
  ~Server();

  int port() const;
  // What is run by it is shared between the calling thread and I/O threads that are free; for Model::prepare.
  RunParts run_parts();

  // Listens and serves until stop() or, with `catch_signals`, SIGTERM or SIGINT; then requests that were received are
  // answered and connections closed with 1001. A second signal ends the process at once. The calling thread runs the
  // model; I/O has threads of its own. `metadata`, a msgpack map, is the first message of every connection.
  void run(Model& model, Metrics& metrics, const std::string& metadata, bool catch_signals = false);

  // From any thread; run() returns when all is drained.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tendon
