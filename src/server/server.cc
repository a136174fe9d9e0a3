#include "server/server.h"

#include <algorithm>
#include <csignal>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>

#include "base/check.h"
#include "server/clock.h"
#include "server/run_here.h"
#include "server/session.h"

namespace tendon {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// How long closing handshakes may take once nothing is left to answer.
constexpr auto kCloseGrace = std::chrono::seconds(2);
constexpr auto kDrainPoll = std::chrono::milliseconds(20);
constexpr auto kSameSignal = std::chrono::seconds(1);
constexpr int kSignalExit = 130;

// With the numbers of threads that stand for others replaced.
ServerOptions completed(ServerOptions options) {
  constexpr int kCoresForThree = 8, kCoresForFour = 12;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  if (options.io_threads <= 0) options.io_threads = cores >= kCoresForFour ? 4 : cores >= kCoresForThree ? 3 : 2;
  if (options.resize_threads <= 0) options.resize_threads = options.io_threads;
  return options;
}

tcp::endpoint endpoint_of(const ServerOptions& options) {
  if (options.port < 0 || options.port > 65535)
    throw_bad_use("port {} does not exist; ports are 1 to 65535, or 0 for any free one.", options.port);
  ErrorCode error;
  const asio::ip::address address =
      asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, error);
  if (error) {
    throw_bad_use("'{}' is not an address that can be listened on. Give a numeric one, such as 0.0.0.0 or 127.0.0.1.",
                  options.host);
  }
  return {address, static_cast<uint16_t>(options.port)};
}

}  // namespace

// Everything but construction and stop() happens on the I/O threads, under `strand` where it is shared.
struct Server::State {
  ServerOptions options;
  LogSink log;
  std::unique_ptr<SessionContext> context;  // before `io`, whose end destroys the sessions
  asio::io_context io;
  asio::strand<asio::io_context::executor_type> strand{asio::make_strand(io)};
  tcp::acceptor acceptor{strand};
  asio::steady_timer timer{strand};
  asio::signal_set signals{strand};
  std::vector<std::weak_ptr<Session>> sessions;
  InferenceQueue* queue = nullptr;
  std::chrono::steady_clock::time_point stop_begin, drain_end, closed_at;
  bool stopping = false, all_answered = false;

  State(const ServerOptions& given, const LogSink& sink) : options(completed(given)), log(sink) {
    const tcp::endpoint endpoint = endpoint_of(options);
    ErrorCode error;
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (error) throw_port(error);
  }

  [[noreturn]] void throw_port(const ErrorCode& error) const {
    throw_bad_input("cannot listen on {} port {}: {}. Stop what uses it, or choose another with --port.", options.host,
                    options.port, error.message());
  }

  void listen() {
    ErrorCode error;
    acceptor.listen(asio::socket_base::max_listen_connections, error);
    if (error) throw_port(error);
  }

  void accept() {
    acceptor.async_accept(asio::make_strand(HereExecutor(io.get_executor())),
                          [this](const ErrorCode& error, tcp::socket socket) {
                            if (error == asio::error::operation_aborted || stopping) return;
                            if (error) {  // out of file descriptors, for instance: go on a little later
                              log_warning(log, "event=accept_failed reason=\"{}\"", error.message());
                              timer.expires_after(std::chrono::milliseconds(100));
                              timer.async_wait([this](const ErrorCode& stopped) {
                                if (!stopped && !stopping) accept();
                              });
                              return;
                            }
                            if (open_sessions() < 2 * options.max_clients + 64)
                              sessions.push_back(start_session(std::move(socket), *context));
                            accept();
                          });
  }

  // Connections that are not closed; sessions that are gone altogether are forgotten.
  size_t open_sessions() {
    std::erase_if(sessions, [](const std::weak_ptr<Session>& session) { return session.expired(); });
    return static_cast<size_t>(std::ranges::count_if(sessions, [](const std::weak_ptr<Session>& session) {
      const std::shared_ptr<Session> alive = session.lock();
      return alive != nullptr && !alive->is_over();
    }));
  }

  void wait_for_signal() {
    signals.async_wait([this](const ErrorCode& error, int number) {
      if (error) return;
      // timeout(1) and some supervisors send a signal to the process and to its group: one request, not two.
      if (stopping && std::chrono::steady_clock::now() - stop_begin > kSameSignal) std::_Exit(kSignalExit);
      log_info(log, "event=signal name={}", number == SIGTERM ? "SIGTERM" : "SIGINT");
      begin_stop();
      wait_for_signal();
    });
  }

  void begin_stop() {
    if (stopping) return;
    stopping = true;
    stop_begin = std::chrono::steady_clock::now();
    ErrorCode ignored;
    acceptor.close(ignored);
    drain_end = std::chrono::steady_clock::now() + seconds(options.drain_s);
    for (const auto& session : sessions) {
      if (const std::shared_ptr<Session> alive = session.lock()) alive->drain();
    }
    poll_drain();
  }

  // Until every request is answered, then until every connection is closed, each for a limited time.
  void poll_drain() {
    const auto now = std::chrono::steady_clock::now();
    const size_t open = open_sessions();
    const bool busy = std::ranges::any_of(sessions, [](const std::weak_ptr<Session>& session) {
      const std::shared_ptr<Session> alive = session.lock();
      return alive != nullptr && alive->is_busy();
    });
    if (!busy && !all_answered) {
      all_answered = true;
      closed_at = now + kCloseGrace;
    }
    if (open == 0 || (all_answered && now > closed_at) || now > drain_end) {
      if (open > 0) log_info(log, "event=stop unclosed_connections={}", open);
      signals.cancel();
      queue->stop(now > drain_end);
      return;
    }
    timer.expires_after(kDrainPoll);
    timer.async_wait([this](const ErrorCode& error) {
      if (!error) poll_drain();
    });
  }
};

Server::Server(const ServerOptions& options, const LogSink& log) : state_(std::make_unique<State>(options, log)) {}

Server::~Server() = default;

int Server::port() const { return state_->acceptor.local_endpoint().port(); }

RunParts Server::run_parts() {
  return [state = state_.get()](int64_t count, const std::function<void(int64_t)>& part) {
    SharedWork::run(count, part, std::min(state->options.resize_threads, state->options.io_threads) - 1,
                    [&](auto&& work) { asio::post(state->io, std::forward<decltype(work)>(work)); });
  };
}

void Server::run(Model& model, Metrics& metrics, const std::string& metadata, bool catch_signals) {
  State& state = *state_;
  InferenceQueue queue(model, metrics, state.options.max_wait_us);
  state.queue = &queue;
  state.context.reset(
      new SessionContext{state.options, model, queue, metrics, state.log, metadata, state.io.get_executor()});
  const int bound_port = port();
  if (catch_signals) {
    state.signals.add(SIGTERM);
    state.signals.add(SIGINT);
    state.wait_for_signal();
  }
  state.listen();
  state.accept();
  auto work = asio::make_work_guard(state.io);
  std::vector<std::thread> threads;
  for (int i = 0; i < state.options.io_threads; ++i) threads.emplace_back([&] { state.io.run(); });
  log_info(state.log, "event=listening host={} port={} key={}", state.options.host, bound_port,
           state.options.api_key.empty() ? "none" : "required");
  queue.run();
  work.reset();
  state.io.stop();
  for (std::thread& thread : threads) thread.join();
  for (const auto& session : state.sessions) {
    if (const std::shared_ptr<Session> alive = session.lock()) alive->release();
  }
  log_info(state.log, "event=stopped requests={} errors={}", metrics.requests(), metrics.failures());
}

void Server::stop() {
  asio::post(state_->strand, [state = state_.get()] { state->begin_stop(); });
}

}  // namespace tendon
