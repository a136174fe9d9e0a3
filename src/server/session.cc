#include "server/session.h"

#include <chrono>
#include <deque>
#include <memory>
#include <optional>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/websocket.hpp>

#include "server/clock.h"
#include "server/http_exchange.h"
#include "server/incoming.h"
#include "server/policy/reply.h"
#include "server/record.h"
#include "server/run_here.h"
#include "wire/message.h"

namespace tendon {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace websocket = beast::websocket;
using ErrorCode = beast::error_code;
using Clock = std::chrono::steady_clock;

constexpr auto kReleaseDelay = std::chrono::seconds(1);
constexpr size_t kFirstBufferBytes = 64 << 10;
// Of a large frame that comes fast the kernel wakes the reader for so many bytes at once, not for every few packets:
// waking a thread costs about as much as copying what came. Smaller ones are done sooner without.
constexpr size_t kLargeBytes = 4 << 20;
constexpr size_t kWakeBytes = 256 << 10;
constexpr size_t kLookBytes = 512 << 10;  // what must have come since the last look into a message
constexpr double kExpect_s = 300e-6;
constexpr size_t kReadAheadBytes = 16 << 10;  // more than the stream keeps of what it has read already
// The reason with which openpi's server closes after an error.
constexpr const char* kErrorReason = "Internal server error. Traceback included in previous frame.";

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

struct EndOfLooks {
  void operator()(Intake* intake) const { intake->end(); }
};

class Connection : public Session, public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::ip::tcp::socket socket, SessionContext& context)
      : context_(context),
        stream_(std::move(socket)),
        executor_(stream_.get_executor()),
        timer_(executor_),
        http_(stream_, context) {
    ErrorCode ignored;
    stream_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
  }

  void start() {
    asio::post(executor_,
               [self = shared_from_this()] { self->http_.run(self, [raw = self.get()] { raw->upgrade(); }); });
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
  // --- WebSocket ----------------------------------------------------------------------------------------------------

  void upgrade() {
    stream_.expires_never();
    ws_.emplace(std::move(stream_));
    ws_->set_option(
        websocket::stream_base::timeout{seconds(context_.options.handshake_s), websocket::stream_base::none(), false});
    ws_->set_option(websocket::stream_base::decorator(
        [](websocket::response_type& response) { response.set(beast::http::field::server, "tendon"); }));
    ws_->read_message_max(0);  // the limit is kept in on_read, where the reason can be told
    ws_->auto_fragment(false);
    ws_->control_callback([this](websocket::frame_type, beast::string_view) { last_seen_ = Clock::now(); });
    ws_->async_accept(http_.request(), [self = shared_from_this()](const ErrorCode& error) {
      if (!error) self->on_accepted();
    });
  }

  void on_accepted() {
    client_ = context_.next_client++;
    is_open_ = true;
    last_seen_ = Clock::now();
    context_.metrics.connected();
    log_info(context_.log, "event=connect client={} address={}", client_, http_.address());
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
    MessageBuffer& buffer = incoming_.buffer;
    if (buffer.capacity == 0) buffer = std::exchange(spare_, {});
    if (buffer.size == buffer.capacity)
      buffer.grow_to(std::max(kFirstBufferBytes, std::min(2 * buffer.capacity, limit() + 1)));
    hurry();
    ws_->async_read_some(asio::buffer(buffer.end(), buffer.capacity - buffer.size),
                         [self = shared_from_this()](const ErrorCode& error, size_t bytes) {
                           if (error) return self->gone(error);
                           self->on_read(bytes);
                         });
  }

  // For a large message that comes fast.
  void hurry() {
    const bool is_fast = !is_closing_ && incoming_.is_fast(last_seen_);
    const size_t rest = is_fast ? ws_->read_size_hint(size_t{1}) : 0;
    const bool is_large = rest > 2 * kReadAheadBytes && incoming_.buffer.size + rest > kLargeBytes;
    // Never more than this frame still brings: what is left of it would not be told of.
    set_wake_bytes(is_large ? std::min(rest - kReadAheadBytes, kWakeBytes) : 1);
    if (is_large) look_ahead();
  }

  // Another thread looks into what has come, one at a time.
  void look_ahead() {
    if (context_.options.io_threads < 2 || ws_->got_text() || is_looked_into_->load()) return;
    if (incoming_.intake == nullptr) incoming_.intake = context_.model.begin();
    if (incoming_.intake == nullptr || incoming_.buffer.size < incoming_.looked_bytes + kLookBytes) return;
    incoming_.looked_bytes = incoming_.buffer.size;
    is_looked_into_->store(true);
    asio::post(context_.pool, [bytes = incoming_.buffer.bytes, size = incoming_.looked_bytes, intake = incoming_.intake,
                               is_looked_into = is_looked_into_] {
      intake->look({bytes.get(), size});
      is_looked_into->store(false);
    });
  }

  void set_wake_bytes(size_t bytes) {
    if (bytes == wake_bytes_) return;
    ErrorCode ignored;
    beast::get_lowest_layer(*ws_).socket().set_option(asio::socket_base::receive_low_watermark(static_cast<int>(bytes)),
                                                      ignored);
    wake_bytes_ = bytes;
  }

  size_t limit() const { return context_.options.max_message_bytes; }

  void on_read(size_t bytes) {
    if (!is_open_) return;
    last_seen_ = Clock::now();
    if (is_closing_) return read_more();  // for the other side's close frame; data is not kept
    size_t& size = incoming_.buffer.size;
    if (size == 0) incoming_.begin = last_seen_;
    size += bytes;
    const bool is_done = ws_->is_message_done();
    const size_t rest = is_done ? 0 : ws_->read_size_hint(size_t{1});
    if (size > limit() || rest > limit() - size) {
      const std::string given = rest > limit() ? fmt::format("{}", rest) : fmt::format("{} or more", size + rest);
      count_failure(Failure::kTooBig, fmt::format("a message of {} bytes, the limit is {}", given, limit()));
      close(websocket::close_code::too_big, fmt::format("message of {} bytes; the limit is {} bytes", given, limit()));
      incoming_ = {};
      return read_more();
    }
    if (!is_done) {
      expect(rest);
      return read_more();
    }
    s_per_byte_ = seconds_between(incoming_.begin, last_seen_) / static_cast<double>(std::max<size_t>(size, 1));
    pending_bytes_ += size;
    incoming_.is_text = ws_->got_text();
    incoming_.received = last_seen_;
    pending_.push_back(std::exchange(incoming_, {}));
    is_busy_ = true;
    next_request();
    if (pending_.size() < context_.options.max_pending && pending_bytes_ <= limit()) {
      read_more();
    } else {
      is_paused_ = true;  // until requests of this client are answered
    }
  }

  // Wakes the worker before the message is whole, if that is soon at the pace of the last one.
  void expect(size_t rest) {
    const double seconds = static_cast<double>(rest) * s_per_byte_;
    if (incoming_.is_expected || !is_ready_ || is_serving_ || seconds > kExpect_s) return;
    incoming_.is_expected = true;
    context_.queue.expect(seconds + kExpect_s);
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
      const std::span<const std::byte> bytes = message.buffer.view();
      std::unique_ptr<Intake, EndOfLooks> looks(message.intake.get());
      if (context_.options.recorder != nullptr) record_ = context_.options.recorder->request(client_, bytes);
      std::unique_ptr<Job> job = context_.model.prepare(bytes, looks.get());
      looks.reset();
      message.buffer.size = 0;
      if (job->reads_message) job->message = message.buffer.bytes;
      (job->reads_message ? lent_ : spare_) = std::move(message.buffer);
      context_.queue.submit(std::move(job), is_gone_,
                            [self = shared_from_this()](Outcome&& outcome) { self->answer(std::move(outcome)); });
    } catch (const std::exception& error) {
      if (dynamic_cast<const Error*>(&error) == nullptr)
        log_warning(context_.log, "event=exception what=\"{}\"", error.what());
      on_outcome(outcome_of(error));
    }
  }

  // On the worker's thread. With nothing else to do it writes the reply itself, sooner than another thread wakes up.
  void answer(Outcome&& outcome) {
    std::optional<RunHere> here;
    if (context_.queue.is_empty()) here.emplace();
    asio::post(executor_, [self = shared_from_this(), kept = std::move(outcome)] { self->on_outcome(kept); });
  }

  void on_outcome(const Outcome& outcome) {
    if (lent_.capacity > 0) spare_ = std::exchange(lent_, {});
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
  int64_t client_ = 0;
  beast::tcp_stream stream_;  // moved into ws_ by the upgrade
  asio::any_io_executor executor_;
  asio::steady_timer timer_;
  HttpExchange http_;

  std::optional<websocket::stream<beast::tcp_stream>> ws_;
  Message incoming_;
  MessageBuffer spare_, lent_;  // to be read into next; read by the job that runs
  size_t wake_bytes_ = 1;
  std::shared_ptr<std::atomic<bool>> is_looked_into_ = std::make_shared<std::atomic<bool>>(false);
  std::deque<Message> pending_;
  size_t pending_bytes_ = 0;
  std::string reply_;
  std::shared_ptr<std::atomic<bool>> is_gone_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> is_busy_ = false, is_over_ = false;  // read by other threads; the rest belongs to the strand
  bool is_open_ = false, is_ready_ = false, is_serving_ = false, is_writing_ = false, is_paused_ = false;
  double s_per_byte_ = 1;  // of the last message
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

}  // namespace tendon
