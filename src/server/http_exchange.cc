#include "server/http_exchange.h"

#include <ctime>

#include <fmt/chrono.h>
#include <boost/beast/websocket/rfc6455.hpp>

#include "server/clock.h"

namespace tendon {

namespace beast = boost::beast;
namespace http = beast::http;
using ErrorCode = beast::error_code;

HttpExchange::HttpExchange(beast::tcp_stream& stream, SessionContext& context) : stream_(stream), context_(context) {
  ErrorCode error;
  const auto endpoint = stream.socket().remote_endpoint(error);
  address_ = error ? "unknown" : endpoint.address().to_string();
}

void HttpExchange::run(std::shared_ptr<void> owner, std::function<void()> upgrade) {
  parser_.emplace();
  parser_->header_limit(kMaxHeaderBytes);
  parser_->body_limit(0);
  stream_.expires_after(seconds(context_.options.handshake_s));
  http::async_read_header(
      stream_, buffer_, *parser_,
      [this, owner = std::move(owner), upgrade = std::move(upgrade)](const ErrorCode& error, size_t) {
        if (!error) on_request(owner, upgrade);
      });
}

void HttpExchange::on_request(std::shared_ptr<void> owner, const std::function<void()>& upgrade) {
  const Request& got = request();
  const auto header = got[http::field::authorization];
  const bool authorized = is_authorized({header.data(), header.size()}, context_.options.api_key);
  if (beast::websocket::is_upgrade(got)) {
    if (!authorized) {
      refuse(std::move(owner),
             {.status = 401, .body = "This server wants a key: send the header \"Authorization: Api-Key <key>\".\n"},
             Failure::kUnauthorized);
    } else if (context_.metrics.clients() >= static_cast<int64_t>(context_.options.max_clients)) {
      refuse(std::move(owner),
             {.status = 503, .body = fmt::format("All {} places are taken.\n", context_.options.max_clients)},
             Failure::kTooManyClients);
    } else {
      upgrade();
    }
    return;
  }
  if (got.method() != http::verb::get && got.method() != http::verb::head) {
    respond(std::move(owner), {.status = 405, .body = "Only GET is answered here.\n"});
    return;
  }
  const auto target = got.target();
  respond(std::move(owner), page_for({target.data(), target.size()}, authorized, context_.metrics));
}

void HttpExchange::refuse(std::shared_ptr<void> owner, Page page, Failure failure) {
  context_.metrics.failed(failure, 0, page.body);
  log_warning(context_.log, "event=refused address={} status={}", address_, page.status);
  respond(std::move(owner), std::move(page));
}

void HttpExchange::respond(std::shared_ptr<void> owner, Page page) {
  response_.result(static_cast<unsigned>(page.status));
  response_.set(http::field::date, fmt::format("{:%a, %d %b %Y %H:%M:%S} GMT", fmt::gmtime(std::time(nullptr))));
  response_.set(http::field::server, "tendon");
  response_.set(http::field::content_type, page.type);
  if (page.status == 426) response_.set(http::field::upgrade, "websocket");
  response_.keep_alive(false);
  const bool is_head = request().method() == http::verb::head;
  response_.content_length(page.body.size());
  if (!is_head) response_.body() = std::move(page.body);
  serializer_.emplace(response_);
  const auto written = [this, owner = std::move(owner)](const ErrorCode& error, size_t) {
    ErrorCode ignored;
    if (!error) stream_.socket().shutdown(boost::asio::ip::tcp::socket::shutdown_send, ignored);
  };
  if (is_head) {
    http::async_write_header(stream_, *serializer_, written);
  } else {
    http::async_write(stream_, *serializer_, written);
  }
}

}  // namespace tendon
