// A WebSocket client on a bare socket, so that tests see and send every byte of the protocol.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tendon::test {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A TCP connection to 127.0.0.1.
class Socket {
 public:
  explicit Socket(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~Socket() { hang_up(); }
  Socket(Socket&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_), unread_(std::move(other.unread_)) {}
  Socket(const Socket&) = delete;

  bool connected() const { return connected_; }
  void hang_up() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  // Closes with RST, as a killed process with unread data does.
  void reset() {
    const linger now{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    hang_up();
  }
  void shrink_receive_buffer() {
    const int bytes = 4096;
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
  }

  void send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) throw std::runtime_error("the server hung up while it was sent to");
      sent += static_cast<size_t>(n);
    }
  }
  // Sends what can be sent without waiting; the number of bytes.
  size_t send_some(const std::string& bytes) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return n > 0 ? static_cast<size_t>(n) : 0;
  }

  // Exactly so many bytes.
  std::string read(size_t count, double timeout_s = 20) {
    while (unread_.size() < count) {
      if (!fill(timeout_s)) throw std::runtime_error("the server hung up");
    }
    std::string bytes = unread_.substr(0, count);
    unread_.erase(0, count);
    return bytes;
  }
  std::string read_until(const std::string& end) {
    while (unread_.find(end) == std::string::npos) {
      if (!fill(20)) throw std::runtime_error("the server hung up");
    }
    return read(unread_.find(end) + end.size());
  }
  std::string read_all() {
    while (fill(20)) {
    }
    return std::exchange(unread_, {});
  }

 private:
  // False: the other side closed.
  bool fill(double timeout_s) {
    pollfd wait{fd_, POLLIN, 0};
    if (poll(&wait, 1, static_cast<int>(timeout_s * 1e3)) <= 0) throw std::runtime_error("the server is silent");
    char buffer[65536];
    const ssize_t n = ::recv(fd_, buffer, sizeof(buffer), 0);
    if (n > 0) unread_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  int fd_;
  bool connected_ = false;
  std::string unread_;
};

enum Opcode { kContinuation = 0, kText = 1, kBinary = 2, kClose = 8, kPing = 9, kPong = 10 };

// A masked frame. `claimed` replaces the length in the header.
inline std::string make_frame(int opcode, const std::string& payload, bool is_final = true, uint64_t claimed = 0) {
  std::string frame;
  frame += static_cast<char>((is_final ? 0x80 : 0) | opcode);
  const uint64_t size = claimed == 0 ? payload.size() : claimed;
  if (size < 126) {
    frame += static_cast<char>(0x80 | size);
  } else {
    const int bytes = size < 65536 ? 2 : 8;
    frame += static_cast<char>(0x80 | (bytes == 2 ? 126 : 127));
    for (int i = bytes - 1; i >= 0; --i) frame += static_cast<char>((size >> (8 * i)) & 0xff);
  }
  const std::string mask = "\x12\x34\x56\x78";
  frame += mask;
  for (size_t i = 0; i < payload.size(); ++i) frame += static_cast<char>(payload[i] ^ mask[i % 4]);
  return frame;
}

struct RawFrame {
  int opcode = 0;
  std::string payload;
  // Of a close frame.
  int code() const {
    return payload.size() < 2 ? 0
                              : static_cast<unsigned char>(payload[0]) * 256 + static_cast<unsigned char>(payload[1]);
  }
  std::string reason() const { return payload.size() < 2 ? "" : payload.substr(2); }
};

inline std::string upgrade_request(const std::string& extra = "", const std::string& target = "/") {
  return "GET " + target +
         " HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: "
         "dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n" +
         extra + "\r\n";
}

class RawClient {
 public:
  // Connects and upgrades; the metadata frame is left to be read.
  explicit RawClient(int port, const std::string& extra = "", const std::string& target = "/") : socket(port) {
    if (!socket.connected()) throw std::runtime_error("connection refused");
    socket.send(upgrade_request(extra, target));
    response = socket.read_until("\r\n\r\n");
  }

  // The next frame of any kind; server frames are whole and not masked.
  RawFrame read_frame(double timeout_s = 20) {
    const std::string head = socket.read(2, timeout_s);
    RawFrame frame;
    frame.opcode = head[0] & 0x0f;
    EXPECT_EQ(head[0] & 0xf0, 0x80) << "whole frames without extensions";
    EXPECT_EQ(head[1] & 0x80, 0) << "a server does not mask";
    uint64_t size = static_cast<unsigned char>(head[1]) & 0x7f;
    if (size >= 126) {
      const std::string longer = socket.read(size == 126 ? 2 : 8);
      size = 0;
      for (const char c : longer) size = size << 8 | static_cast<unsigned char>(c);
    }
    frame.payload = socket.read(size);
    return frame;
  }
  // The next frame that is no ping; pings are answered.
  RawFrame read(double timeout_s = 20) {
    for (;;) {
      RawFrame frame = read_frame(timeout_s);
      if (frame.opcode != kPing) return frame;
      ++pings;
      socket.send(make_frame(kPong, frame.payload));
    }
  }
  void send(const std::string& message) { socket.send(make_frame(kBinary, message)); }
  // Answers the server's close frame and expects the connection to end.
  void finish(const RawFrame& close) {
    EXPECT_EQ(close.opcode, kClose);
    socket.send(make_frame(kClose, close.payload.substr(0, 2)));
    EXPECT_EQ(socket.read_all(), "");
  }

  Socket socket;
  std::string response;
  int pings = 0;
};

}  // namespace tendon::test
