#include "wire/client.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/websocket.hpp>

#include "base/check.h"
#include "base/simd.h"

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

// Frames are masked and sent in portions, so that the other side reads one while the next is masked; those up to the
// usual three pictures of 224 x 224 at once, which wakes it less often.
constexpr size_t kPortionBytes = 256 << 10, kOnePortionBytes = 1 << 20;

using MaskKey = std::array<std::byte, 4>;

MaskKey random_key() {
  std::random_device device;
  const uint32_t bits = device();
  MaskKey key;
  std::memcpy(key.data(), &bits, key.size());
  return key;
}

// Of a masked, final, binary frame.
void append_header(uint64_t bytes, const MaskKey& key, std::vector<std::byte>& out) {
  constexpr unsigned kFinalBinary = 0x82, kMasked = 0x80, kTwoBytes = 126, kEightBytes = 127;
  const int length_bytes = bytes < kTwoBytes ? 0 : bytes < 65536 ? 2 : 8;
  const unsigned first = length_bytes == 0 ? static_cast<unsigned>(bytes) : length_bytes == 2 ? kTwoBytes : kEightBytes;
  out.push_back(std::byte{kFinalBinary});
  out.push_back(static_cast<std::byte>(kMasked | first));
  for (int shift = 8 * (length_bytes - 1); shift >= 0; shift -= 8)
    out.push_back(static_cast<std::byte>(bytes >> shift));
  out.insert(out.end(), key.begin(), key.end());
}

// `from` begins a multiple of four bytes into the frame's payload.
TENDON_SIMD_CLONES void copy_masked(const char* from, size_t bytes, const MaskKey& key, std::byte* to) {
  uint64_t wide = 0;
  for (size_t i = 0; i < sizeof(wide); i += key.size())
    std::memcpy(reinterpret_cast<std::byte*>(&wide) + i, key.data(), key.size());
  size_t i = 0;
  for (; i + sizeof(wide) <= bytes; i += sizeof(wide)) {
    uint64_t word = 0;
    std::memcpy(&word, from + i, sizeof(word));
    word ^= wide;
    std::memcpy(to + i, &word, sizeof(word));
  }
  for (; i < bytes; ++i) to[i] = static_cast<std::byte>(from[i]) ^ key[i % key.size()];
}

}  // namespace

struct WireClient::State {
  std::string url;
  std::chrono::duration<double> timeout;
  asio::io_context io;
  websocket::stream<tcp::socket> ws{io};
  std::vector<std::byte> portion;

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

// Beside the stream, whose writer goes over the bytes twice. What the stream itself writes, answers to pings and
// closes, it writes while it reads.
void WireClient::write(std::string_view message) {
  std::vector<std::byte>& portion = state_->portion;
  const MaskKey key = random_key();
  portion.clear();
  append_header(message.size(), key, portion);
  const size_t most = message.size() <= kOnePortionBytes ? message.size() : kPortionBytes;
  size_t at = 0, head = portion.size();
  do {
    const size_t bytes = std::min(message.size() - at, most);
    portion.resize(head + bytes);
    copy_masked(message.data() + at, bytes, key, portion.data() + head);
    state_->run([&](auto&& done) {
      asio::async_write(beast::get_lowest_layer(state_->ws), asio::buffer(portion), std::move(done));
    });
    at += bytes;
    head = 0;
  } while (at < message.size());
}

void WireClient::close() {
  state_->run([&](auto&& done) { state_->ws.async_close(websocket::close_code::normal, std::move(done)); });
}

}  // namespace tendon
