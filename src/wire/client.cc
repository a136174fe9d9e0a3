#include "wire/client.h"

#include <chrono>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/websocket.hpp>

#include "base/check.h"

namespace tendon {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace websocket = beast::websocket;
using asio::ip::tcp;
using ErrorCode = beast::error_code;

struct Address {
  std::string host, port = "8000", path = "/";
};

Address parse(const std::string& url) {
  constexpr std::string_view kScheme = "ws://";
  if (!url.starts_with(kScheme)) throw_bad_use("'{}' is not an address of a server. Write ws://HOST:PORT.", url);
  Address address;
  std::string rest = url.substr(kScheme.size());
  if (const size_t slash = rest.find('/'); slash != std::string::npos) {
    address.path = rest.substr(slash);
    rest.resize(slash);
  }
  const size_t colon = rest.rfind(':');
  if (colon != std::string::npos && rest.find(']', colon) == std::string::npos) {
    address.port = rest.substr(colon + 1);
    rest.resize(colon);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  address.host = rest;
  if (rest.empty() || address.port.empty() || address.port.find_first_not_of("0123456789") != std::string::npos)
    throw_bad_use("'{}' is not an address of a server. Write ws://HOST:PORT.", url);
  return address;
}

}  // namespace

struct WireClient::State {
  std::string url;
  std::chrono::duration<double> timeout;
  asio::io_context io;
  websocket::stream<tcp::socket> ws{io};

  [[noreturn]] void fail(const ErrorCode& error) {
    if (error == websocket::error::closed) {
      const auto& reason = ws.reason();
      throw_bad_input("{} closed the connection with code {}: {}.", url, static_cast<int>(reason.code),
                      reason.reason.empty() ? "no reason given" : std::string(reason.reason.c_str()));
    }
    throw_bad_input("{}: {}. Is the server running, and does its log say more?", url, error.message());
  }

  // Starts an operation with a completion handler and waits for it.
  template <class Start>
  void run(const Start& start) {
    bool done = false;
    ErrorCode result;
    start([&](const ErrorCode& error, auto&&...) {
      done = true;
      result = error;
    });
    io.restart();
    io.run_for(std::chrono::duration_cast<std::chrono::nanoseconds>(timeout));
    if (!done) {
      ErrorCode ignored;
      beast::get_lowest_layer(ws).close(ignored);
      io.restart();
      io.run();
      throw_bad_input("{}: no answer within {:.1f} s.", url, timeout.count());
    }
    if (result) fail(result);
  }
};

WireClient::WireClient(const std::string& url, const ClientOptions& options) : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.url = url;
  state.timeout = std::chrono::duration<double>(options.timeout_s);
  const Address address = parse(url);
  ErrorCode error;
  const auto endpoints = tcp::resolver(state.io).resolve(address.host, address.port, error);
  if (error) state.fail(error);
  tcp::socket& socket = beast::get_lowest_layer(state.ws);
  state.run([&](auto&& done) { asio::async_connect(socket, endpoints, std::move(done)); });
  socket.set_option(tcp::no_delay(true), error);
  state.ws.read_message_max(0);
  state.ws.auto_fragment(false);
  state.ws.write_buffer_bytes(size_t{256} << 10);  // client frames are masked through this buffer
  state.ws.binary(true);
  state.ws.set_option(websocket::stream_base::decorator([key = options.api_key](websocket::request_type& request) {
    if (!key.empty()) request.set(beast::http::field::authorization, "Api-Key " + key);
  }));
  websocket::response_type response;
  try {
    state.run([&](auto&& done) {
      state.ws.async_handshake(response, address.host + ":" + address.port, address.path, std::move(done));
    });
  } catch (const Error&) {
    if (response.result_int() == 0 || response.result() == beast::http::status::switching_protocols) throw;
    throw_bad_input("{} refused the connection: HTTP {} {}", url, response.result_int(), response.body());
  }
}

WireClient::~WireClient() = default;
WireClient::WireClient(WireClient&&) noexcept = default;

Frame WireClient::read() {
  Frame frame;
  auto buffer = asio::dynamic_buffer(frame.bytes);
  state_->run([&](auto&& done) { state_->ws.async_read(buffer, std::move(done)); });
  frame.is_text = state_->ws.got_text();
  return frame;
}

void WireClient::write(std::string_view message) {
  state_->run(
      [&](auto&& done) { state_->ws.async_write(asio::buffer(message.data(), message.size()), std::move(done)); });
}

void WireClient::close() {
  state_->run([&](auto&& done) { state_->ws.async_close(websocket::close_code::normal, std::move(done)); });
}

}  // namespace tendon
