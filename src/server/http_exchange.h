// The HTTP request that every connection begins with: a page, a refusal, or the upgrade to WebSocket.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "server/pages.h"
#include "server/session.h"

namespace tendon {

class HttpExchange {
 public:
  using Request = boost::beast::http::request<boost::beast::http::empty_body>;

  HttpExchange(boost::beast::tcp_stream& stream, SessionContext& context);

  // On the stream's executor: reads the request, and answers it or calls `upgrade`. `owner` holds this object and the
  // stream, and is kept alive meanwhile.
  void run(std::shared_ptr<void> owner, std::function<void()> upgrade);

  const Request& request() const { return parser_->get(); }
  const std::string& address() const { return address_; }  // of the other side

 private:
  void on_request(std::shared_ptr<void> owner, const std::function<void()>& upgrade);
  void refuse(std::shared_ptr<void> owner, Page page, Failure failure);
  void respond(std::shared_ptr<void> owner, Page page);

  static constexpr size_t kMaxHeaderBytes = 16 << 10;

  boost::beast::tcp_stream& stream_;
  SessionContext& context_;
  std::string address_;
  boost::beast::flat_buffer buffer_{kMaxHeaderBytes};
  std::optional<boost::beast::http::request_parser<boost::beast::http::empty_body>> parser_;
  boost::beast::http::response<boost::beast::http::string_body> response_;
  std::optional<boost::beast::http::response_serializer<boost::beast::http::string_body>> serializer_;
};

}  // namespace tendon
