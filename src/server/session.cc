#include "server/session.h"

#include <chrono>
#include <cstring>
#include <ctime>
#include <deque>
#include <optional>

#include <fmt/chrono.h>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket.hpp>

#include "server/chunking_keys.h"
#include "server/pages.h"
#include "server/record.h"
#include "wire/message.h"

namespace tendon {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace websocket = beast::websocket;
using ErrorCode = beast::error_code;
using Clock = std::chrono::steady_clock;

constexpr auto kReleaseDelay = std::chrono::seconds(1);
constexpr size_t kMaxHeaderBytes = 16 << 10;
constexpr size_t kFirstBufferBytes = 64 << 10;
// The reason with which openpi's server closes after an error.
constexpr const char* kErrorReason = "Internal server error. Traceback included in previous frame.";

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

// Bytes that are not set to anything before they are read into.
struct Buffer {
  std::unique_ptr<std::byte[]> bytes;
  size_t capacity = 0, size = 0;

  void grow_to(size_t wanted) {
    auto larger = std::make_unique_for_overwrite<std::byte[]>(wanted);
    if (size > 0) std::memcpy(larger.get(), bytes.get(), size);
    bytes = std::move(larger);
    capacity = wanted;
  }
};

struct Message {
  Buffer buffer;
  bool is_text = false;
  Clock::time_point received;
};

class Connection : public Session, public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::ip::tcp::socket socket, SessionContext& context)
      : context_(context), client_(0), stream_(std::move(socket)), timer_(stream_.get_executor()) {
    ErrorCode ignored;
    const auto endpoint = stream_.socket().remote_endpoint(ignored);
    address_ = ignored ? "unknown" : endpoint.address().to_string();
    stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
  }

  void start() {
    asio::post(stream_.get_executor(), [self = shared_from_this()] { self->read_request(); });
  }

  void drain() override {
    asio::post(executor_, [self = shared_from_this()] {
      self->draining_ = true;
      self->close_if_drained();
    });
  }

  bool is_busy() const override { return is_busy_.load(); }
  bool is_over() const override { return is_over_.load(); }
  void release() override { ws_.reset(); }

 private:
  // --- HTTP ---------------------------------------------------------------------------------------------------------

  void read_request() {
    executor_ = stream_.get_executor();
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    parser_->body_limit(0);
    stream_.expires_after(seconds(context_.options.handshake_s));
    http::async_read_header(stream_, http_buffer_, *parser_,
                            [self = shared_from_this()](const ErrorCode& error, size_t) {
                              if (!error) self->on_request();
                            });
  }

  void on_request() {
    const http::request<http::empty_body>& request = parser_->get();
    const auto header = request[http::field::authorization];
    const bool authorized = is_authorized({header.data(), header.size()}, context_.options.api_key);
    if (websocket::is_upgrade(request)) {
      if (!authorized) {
        refuse({.status = 401, .body = "This server wants a key: send the header \"Authorization: Api-Key <key>\".\n"},
               Failure::kUnauthorized);
      } else if (context_.metrics.clients() >= static_cast<int64_t>(context_.options.max_clients)) {
        refuse({.status = 503, .body = fmt::format("All {} places are taken.\n", context_.options.max_clients)},
               Failure::kTooManyClients);
      } else {
        upgrade();
      }
      return;
    }
    if (request.method() != http::verb::get && request.method() != http::verb::head) {
      respond({.status = 405, .body = "Only GET is answered here.\n"});
      return;
    }
    const auto target = request.target();
    respond(page_for({target.data(), target.size()}, authorized, context_.metrics));
  }

  void refuse(Page page, Failure failure) {
    context_.metrics.failed(failure, 0, page.body);
    log_warning(context_.log, "event=refused address={} status={}", address_, page.status);
    respond(std::move(page));
  }

  void respond(Page page) {
    response_.result(static_cast<unsigned>(page.status));
    response_.set(http::field::date, fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(std::time(nullptr))));
    response_.set(http::field::server, "tendon");
    response_.set(http::field::content_type, page.type);
    if (page.status == 426) response_.set(http::field::upgrade, "websocket");
    response_.keep_alive(false);
    const bool is_head = parser_->get().method() == http::verb::head;
    response_.content_length(page.body.size());
    if (!is_head) response_.body() = std::move(page.body);
    serializer_.emplace(response_);
    const auto written = [self = shared_from_this()](const ErrorCode& error, size_t) {
      ErrorCode ignored;
      if (!error) self->stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    };
    if (is_head) {
      http::async_write_header(stream_, *serializer_, written);
    } else {
      http::async_write(stream_, *serializer_, written);
    }
  }

  // --- WebSocket ----------------------------------------------------------------------------------------------------

  void upgrade() {
    stream_.expires_never();
    ws_.emplace(std::move(stream_));
    ws_->set_option(
        websocket::stream_base::timeout{seconds(context_.options.handshake_s), websocket::stream_base::none(), false});
    ws_->set_option(websocket::stream_base::decorator(
        [](websocket::response_type& response) { response.set(http::field::server, "tendon"); }));
    ws_->read_message_max(0);  // the limit is kept in on_read, where the reason can be told
    ws_->auto_fragment(false);
    ws_->control_callback([this](websocket::frame_type, beast::string_view) { last_seen_ = Clock::now(); });
    ws_->async_accept(parser_->get(), [self = shared_from_this()](const ErrorCode& error) {
      if (!error) self->on_accepted();
    });
  }

  void on_accepted() {
    client_ = context_.next_client++;
    is_open_ = true;
    last_seen_ = Clock::now();
    context_.metrics.connected();
    log_info(context_.log, "event=connect client={} address={}", client_, address_);
    write(context_.metadata, false, [this] {
      loop_start_ = Clock::now();
      is_ready_ = true;
      next_request();
      close_if_drained();
    });
    read_more();
    schedule_ping();
  }

  void write(const std::string& bytes, bool is_text, std::function<void()> then) {
    ws_->text(is_text);
    ws_->async_write(asio::buffer(bytes),
                     [self = shared_from_this(), then = std::move(then)](const ErrorCode& error, size_t) {
                       if (error) return self->gone(error);
                       if (self->is_open_) then();
                     });
  }

  void read_more() {
    if (!is_open_) return;
    if (incoming_.capacity == 0) incoming_ = std::exchange(spare_, {});
    if (incoming_.size == incoming_.capacity) {
      incoming_.grow_to(std::max(kFirstBufferBytes, std::min(2 * incoming_.capacity, limit() + 1)));
    }
    ws_->async_read_some(asio::buffer(incoming_.bytes.get() + incoming_.size, incoming_.capacity - incoming_.size),
                         [self = shared_from_this()](const ErrorCode& error, size_t bytes) {
                           if (error) return self->gone(error);
                           self->on_read(bytes);
                         });
  }

  size_t limit() const { return context_.options.max_message_bytes; }

  void on_read(size_t bytes) {
    if (!is_open_) return;
    last_seen_ = Clock::now();
    if (is_closing_) return read_more();  // for the other side's close frame; data is not kept
    incoming_.size += bytes;
    const bool is_done = ws_->is_message_done();
    const size_t rest = is_done ? 0 : ws_->read_size_hint(size_t{1});
    if (incoming_.size > limit() || rest > limit() - incoming_.size) {
      const std::string size =
          rest > limit() ? fmt::format("{}", rest) : fmt::format("{} or more", incoming_.size + rest);
      count_failure(Failure::kTooBig, fmt::format("a message of {} bytes, the limit is {}", size, limit()));
      close(websocket::close_code::too_big, fmt::format("message of {} bytes; the limit is {} bytes", size, limit()));
      incoming_ = {};
      return read_more();
    }
    if (!is_done) return read_more();
    pending_bytes_ += incoming_.size;
    pending_.push_back({std::exchange(incoming_, {}), ws_->got_text(), last_seen_});
    is_busy_ = true;
    next_request();
    if (pending_.size() < context_.options.max_pending && pending_bytes_ <= limit()) {
      read_more();
    } else {
      is_paused_ = true;  // until requests of this client are answered
    }
  }

  // Takes the oldest message, unless an earlier one is still without its answer.
  void next_request() {
    if (!is_ready_ || is_serving_ || is_closing_ || pending_.empty()) return;
    is_serving_ = true;
    Message message = std::move(pending_.front());
    pending_.pop_front();
    pending_bytes_ -= message.buffer.size;
    received_ = message.received;
    try {
      if (message.is_text)
        throw_bad_input("a text frame was received; observations are binary frames with a msgpack map.");
      const std::span<const std::byte> bytes(message.buffer.bytes.get(), message.buffer.size);
      if (context_.options.recorder != nullptr) record_ = context_.options.recorder->request(client_, bytes);
      std::unique_ptr<Job> job = context_.model.prepare(bytes);
      message.buffer.size = 0;
      spare_ = std::move(message.buffer);
      context_.queue.submit(std::move(job), is_gone_, [self = shared_from_this()](Outcome&& outcome) {
        asio::post(self->executor_, [self, kept = std::move(outcome)] { self->on_outcome(kept); });
      });
    } catch (const std::exception& error) {
      if (dynamic_cast<const Error*>(&error) == nullptr)
        log_warning(context_.log, "event=exception what=\"{}\"", error.what());
      on_outcome(outcome_of(error));
    }
  }

  void on_outcome(const Outcome& outcome) {
    if (!is_open_ || is_closing_) return;
    if (!outcome.error.empty()) return fail(outcome.failure, outcome.error);
    reply_ = encode_reply(outcome, prev_total_ms_);
    if (context_.options.recorder != nullptr) context_.options.recorder->reply(record_, outcome.draw, reply_);
    is_writing_ = true;
    write(reply_, false, [this, outcome_times = times_of(outcome)]() mutable {
      const Clock::time_point now = Clock::now();
      prev_total_ms_ = seconds_between(loop_start_, now) * 1e3;
      loop_start_ = now;
      outcome_times.total_s = seconds_between(received_, now);
      context_.metrics.answered(client_, outcome_times);
      if (context_.options.log_requests) {
        log_info(context_.log, "event=request client={} queue_ms={:.3f} model_ms={:.3f} total_ms={:.3f}", client_,
                 outcome_times.queue_s * 1e3, outcome_times.model_s * 1e3, outcome_times.total_s * 1e3);
      }
      finish_request();
    });
  }

  static RequestTimes times_of(const Outcome& outcome) {
    return {.queue_s = outcome.queue_us * 1e-6, .model_s = outcome.model_us * 1e-6, .total_s = 0};
  }

  void finish_request() {
    is_serving_ = is_writing_ = false;
    last_seen_ = Clock::now();  // a client need not have been heard of while its request ran
    is_busy_ = !pending_.empty();
    next_request();
    if (is_paused_ && !is_closing_) {
      is_paused_ = false;
      read_more();
    }
    close_if_drained();
  }

  void count_failure(Failure failure, const std::string& message) {
    context_.metrics.failed(failure, client_, message);
    log_warning(context_.log, "event=error client={} kind={} message=\"{}\"", client_,
                kFailureNames[static_cast<size_t>(failure)], message);
  }

  // One text frame, then close 1011.
  void fail(Failure failure, const std::string& message) {
    count_failure(failure, message);
    if (context_.options.recorder != nullptr) context_.options.recorder->failure(record_, message);
    pending_.clear();
    pending_bytes_ = 0;
    reply_ = message;
    is_writing_ = true;
    write(reply_, true, [this] {
      is_busy_ = false;
      close(websocket::close_code::internal_error, kErrorReason);
      if (std::exchange(is_paused_, false)) read_more();
    });
  }

  void close_if_drained() {
    if (draining_ && is_ready_ && !is_busy_) close(websocket::close_code::going_away, "the server is shutting down");
  }

  void close(websocket::close_code code, const std::string& reason) {
    if (is_closing_ || !is_open_ || !ws_->is_open()) return;
    is_closing_ = true;
    is_busy_ = false;
    log_info(context_.log, "event=close client={} code={}", client_, static_cast<int>(code));
    ws_->async_close({code, reason.substr(0, 120)},
                     [self = shared_from_this()](const ErrorCode& error) { self->gone(error); });
  }

  void schedule_ping() {
    timer_.expires_after(seconds(context_.options.ping_s));
    timer_.async_wait([self = shared_from_this()](const ErrorCode& error) {
      if (!error && self->is_open_) self->ping();
    });
  }

  void ping() {
    // A closing handshake, or a closed connection whose other end stays open: one interval is enough.
    if (!ws_->is_open() && std::exchange(is_lingering_, true)) return gone(websocket::error::closed);
    // A client that is not read from cannot show that it lives.
    const bool is_silent = seconds_between(last_seen_, Clock::now()) > context_.options.client_timeout_s;
    if (is_silent && (is_writing_ || (!is_paused_ && !is_serving_))) {
      log_warning(context_.log, "event=timeout client={} silent_s={}", client_, context_.options.client_timeout_s);
      return gone(beast::error::timeout);
    }
    if (!is_pinging_ && ws_->is_open()) {
      is_pinging_ = true;
      ws_->async_ping({}, [self = shared_from_this()](const ErrorCode&) { self->is_pinging_ = false; });
    }
    schedule_ping();
  }

  // The connection is over, whoever ended it.
  void gone(const ErrorCode& error) {
    if (!is_open_) return;
    is_open_ = false;
    is_busy_ = false;
    is_over_ = true;
    is_gone_->store(true);
    const bool is_abrupt = error && error != websocket::error::closed;
    if (is_abrupt && error.category() == make_error_code(websocket::error::closed).category() && !is_closing_)
      count_failure(Failure::kProtocol, error.message());
    context_.metrics.disconnected();
    log_info(context_.log, "event=disconnect client={} reason=\"{}\"", client_,
             error ? error.message() : "closed by the server");
    ErrorCode ignored;
    beast::get_lowest_layer(*ws_).socket().close(ignored);
    pending_.clear();
    // Operations that wait for each other inside the stream hold this session; what runs has failed by then.
    timer_.expires_after(kReleaseDelay);
    timer_.async_wait([self = shared_from_this()](const ErrorCode&) { self->release(); });
  }

  SessionContext& context_;
  int64_t client_;
  std::string address_;
  beast::tcp_stream stream_;  // moved into ws_ by the upgrade
  asio::any_io_executor executor_;
  asio::steady_timer timer_;

  beast::flat_buffer http_buffer_{kMaxHeaderBytes};
  std::optional<http::request_parser<http::empty_body>> parser_;
  http::response<http::string_body> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;

  std::optional<websocket::stream<beast::tcp_stream>> ws_;
  Buffer incoming_, spare_;
  std::deque<Message> pending_;
  size_t pending_bytes_ = 0;
  std::string reply_;
  std::shared_ptr<std::atomic<bool>> is_gone_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> is_busy_ = false, is_over_ = false;  // read by other threads; the rest belongs to the strand
  bool is_open_ = false, is_ready_ = false, is_serving_ = false, is_writing_ = false, is_paused_ = false;
  bool is_closing_ = false, is_pinging_ = false, is_lingering_ = false, draining_ = false;
  Clock::time_point last_seen_, received_, loop_start_;
  double prev_total_ms_ = -1;
  int64_t record_ = -1;
};

}  // namespace

std::shared_ptr<Session> start_session(asio::ip::tcp::socket socket, SessionContext& context) {
  auto connection = std::make_shared<Connection>(std::move(socket), context);
  connection->start();
  return connection;
}

std::string encode_reply(const Outcome& outcome, double prev_total_ms) {
  const std::array<int64_t, 2> shape{outcome.chunk.horizon, outcome.chunk.width};
  const bool is_first = prev_total_ms < 0;
  WireWriter reply;
  reply.map(3 + (outcome.chunk.overlap ? kChunkingReplyEntries : 0))
      .text("actions")
      .array(shape, outcome.chunk.actions);
  reply.text("policy_timing").map(1).text("infer_ms").number(outcome.model_us * 1e-3);
  reply.text("server_timing").map(is_first ? 2 : 3);
  reply.text("infer_ms").number(outcome.infer_us * 1e-3).text("queue_ms").number(outcome.queue_us * 1e-3);
  if (!is_first) reply.text("prev_total_ms").number(prev_total_ms);
  if (outcome.chunk.overlap) write_overlap(reply, *outcome.chunk.overlap);
  return reply.take();
}

}  // namespace tendon
