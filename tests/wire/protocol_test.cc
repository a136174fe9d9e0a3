// What openpi's clients rely on, byte by byte. Numbers of pitfalls and field cases stand at each test.
#include <gmock/gmock.h>

#include <fmt/format.h>
#include <numeric>

#include "base/check.h"
#include "echo_server.h"

namespace tendon::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kErrorReason = "Internal server error. Traceback included in previous frame.";

std::vector<std::string> keys_of(const WireMap& map) {
  std::vector<std::string> keys;
  for (const WireEntry& entry : map) keys.emplace_back(entry.key);
  return keys;
}

// One text frame, then close 1011.
std::string expect_error(RawClient& client) {
  const RawFrame text = client.read();
  EXPECT_EQ(text.opcode, kText);
  const RawFrame close = client.read();
  EXPECT_EQ(close.code(), 1011);
  EXPECT_EQ(close.reason(), kErrorReason);
  client.finish(close);
  return text.payload;
}

// Pitfalls 2, 3 and 7, field case 15.
TEST(Protocol, MetadataFirstThenOneReplyEach) {
  EchoServer server;
  RawClient client(server.port());
  EXPECT_THAT(client.response, HasSubstr("101 Switching Protocols"));
  EXPECT_THAT(client.response, HasSubstr("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
  const RawFrame metadata = client.read();
  EXPECT_EQ(metadata.opcode, kBinary);
  EXPECT_EQ(metadata.payload, "\x80");
  double total_ms = 0;
  for (int i = 0; i < 4; ++i) {
    client.send(echo_request(i));
    const RawFrame frame = client.read();
    EXPECT_EQ(answer(frame), i);
    const WireValue message = decode_message(std::as_bytes(std::span(frame.payload)));
    const auto& map = *message.get_if<WireMap>();
    EXPECT_THAT(keys_of(map), ElementsAre("actions", "policy_timing", "server_timing"));
    const auto& policy = *find_key(map, "policy_timing")->get_if<WireMap>();
    EXPECT_THAT(keys_of(policy), ElementsAre("infer_ms"));
    EXPECT_EQ(to_numbers(*find_key(policy, "infer_ms"), "").at(0), 1.0);
    const auto& timing = *find_key(map, "server_timing")->get_if<WireMap>();
    if (i == 0) {
      EXPECT_THAT(keys_of(timing), ElementsAre("infer_ms", "queue_ms"));
    } else {
      EXPECT_THAT(keys_of(timing), ElementsAre("infer_ms", "queue_ms", "prev_total_ms"));
      total_ms += to_numbers(*find_key(timing, "prev_total_ms"), "").at(0);
    }
    for (const WireEntry& entry : timing) EXPECT_NE(entry.value.get_if<double>(), nullptr) << entry.key;
    if (i == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_GE(total_ms, 50) << "the client's own time counts";
}

// Pitfall 6: openpi's broker slices every array along its first dimension.
TEST(Protocol, EveryArrayOfAReplyHasTheHorizon) {
  EchoServer server;
  RawClient client = ready_client(server);
  client.send(echo_request(1));
  const std::string reply = client.read().payload;
  const WireValue message = decode_message(std::as_bytes(std::span(reply)));
  int arrays = 0;
  const std::function<void(const WireValue&)> visit = [&](const WireValue& value) {
    if (const auto* array = value.get_if<WireArray>()) {
      ++arrays;
      ASSERT_FALSE(array->shape.empty());
      EXPECT_EQ(array->shape[0], 3);
    }
    if (const auto* map = value.get_if<WireMap>()) {
      for (const WireEntry& entry : *map) visit(entry.value);
    }
  };
  visit(message);
  EXPECT_EQ(arrays, 1);
}

// Pitfall 4: fragments with a ping between them, while another request runs.
TEST(Protocol, FragmentsAndPings) {
  EchoServer server;
  RawClient client = ready_client(server);
  client.send(echo_request(1, true));
  server.model.await_waiting();
  const std::string message = padded_request(2, 600000);
  client.socket.send(make_frame(kBinary, message.substr(0, 200000), false));
  client.socket.send(make_frame(kPing, "between"));
  client.socket.send(make_frame(kContinuation, message.substr(200000, 1), false));
  client.socket.send(make_frame(kContinuation, message.substr(200001)));
  const RawFrame pong = client.read(1);
  EXPECT_EQ(pong.opcode, kPong);
  EXPECT_EQ(pong.payload, "between");
  server.model.open();
  EXPECT_EQ(answer(client.read()), 1);
  EXPECT_EQ(answer(client.read()), 2);
}

// Field case 16 and pitfall 5; the inference ends when everything was answered.
TEST(Protocol, BusyServerStaysResponsive) {
  EchoServer server;
  RawClient client = ready_client(server);
  client.send(echo_request(1, true));
  server.model.await_waiting();
  for (int i = 0; i < 3; ++i) {
    Clock::time_point start = Clock::now();
    client.socket.send(make_frame(kPing, "p"));
    EXPECT_EQ(client.read(1).opcode, kPong);
    RawClient other = ready_client(server);
    Socket plain(server.port());
    plain.send("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_THAT(plain.read_all(), HasSubstr("200 OK"));
    EXPECT_LT(seconds_since(start), 1);
  }
  server.model.open();
  EXPECT_EQ(answer(client.read()), 1);
}

TEST(Protocol, RequestsSentAheadAreAnsweredInOrder) {
  EchoServer server;
  RawClient client = ready_client(server);
  for (int i = 0; i < 100; ++i) client.send(echo_request(i));  // more than are read ahead
  for (int i = 0; i < 100; ++i) ASSERT_EQ(answer(client.read()), i);
}

// Field case 16: each client its own answers; waiting requests share batches.
TEST(Protocol, ClientsGetTheirOwnAnswers) {
  EchoServer server;
  std::vector<RawClient> clients;
  for (int i = 0; i < 9; ++i) clients.push_back(ready_client(server));
  clients[0].send(echo_request(0, true));
  server.model.await_waiting();
  for (int round = 0; round < 3; ++round) {
    for (int i = 1; i < 9; ++i) clients[static_cast<size_t>(i)].send(echo_request(10 * i + round));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server.model.open();
  EXPECT_EQ(answer(clients[0].read()), 0);
  for (int round = 0; round < 3; ++round) {
    for (int i = 1; i < 9; ++i) ASSERT_EQ(answer(clients[static_cast<size_t>(i)].read()), 10 * i + round);
  }
  const std::vector<size_t> batches = server.model.batches();
  EXPECT_EQ(std::accumulate(batches.begin(), batches.end(), size_t{0}), 25U);
  EXPECT_EQ(*std::ranges::max_element(batches), 4U);
}

// Pitfall 8 and field case 15: whatever is wrong with a message, one connection ends and all else goes on.
TEST(Protocol, ErrorsEndOneConnection) {
  EchoServer server;
  RawClient other = ready_client(server);
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"\xc1", "not msgpack"},
      {"", "empty"},
      {"\x81\xa1x", "cut short"},
      {WireWriter().map(0).take(), "lacks the key 'x'"},
      {WireWriter().list(0).take(), "lacks the key 'x'"},
      {WireWriter().map(1).text("x").text("cup").take(), "text"},
      {WireWriter().map(2).text("x").number(1).text("fail").text("the card is gone").take(), "the card is gone"}};
  for (const auto& [message, part] : cases) {
    RawClient client = ready_client(server);
    client.send(echo_request(3));
    client.send(message);
    client.send(echo_request(4));  // is not answered any more
    EXPECT_EQ(answer(client.read()), 3);
    const std::string text = expect_error(client);
    EXPECT_THAT(text.substr(0, text.find('\n')), HasSubstr(part));
    other.send(echo_request(5));
    EXPECT_EQ(answer(other.read()), 5);
  }
  RawClient client = ready_client(server);
  client.socket.send(make_frame(kText, "hello"));
  EXPECT_THAT(expect_error(client), HasSubstr("text frame"));
  EXPECT_EQ(server.metrics.failures(), cases.size() + 1);
}

// Field case 17.
TEST(Protocol, BigMessages) {
  EchoServer server({.max_message_bytes = size_t{20} << 20});
  RawClient client = ready_client(server);
  const size_t three_frames = size_t{3} * 1920 * 1080 * 3;
  client.send(padded_request(1, three_frames));
  EXPECT_EQ(answer(client.read()), 1);

  client.send(padded_request(2, size_t{21} << 20));
  RawFrame close = client.read();
  EXPECT_EQ(close.code(), 1009);
  EXPECT_THAT(close.reason(), HasSubstr(std::to_string(size_t{20} << 20)));

  for (const bool is_final : {true, false}) {  // a header alone, never that much memory
    RawClient liar = ready_client(server);
    liar.socket.send(make_frame(kBinary, "only this", is_final, uint64_t{1} << 40));
    close = liar.read();
    EXPECT_EQ(close.code(), 1009);
    EXPECT_THAT(close.reason(), HasSubstr("1099511627"));
    EXPECT_THAT(close.reason(), HasSubstr(std::to_string(size_t{20} << 20)));
  }
  // Many small fragments add up.
  RawClient pieces = ready_client(server);
  pieces.socket.send(make_frame(kBinary, "", false));
  const std::string fragment = make_frame(kContinuation, std::string(1 << 20, 'x'), false);
  for (int i = 0; i < 21; ++i) pieces.socket.send(fragment);
  EXPECT_EQ(pieces.read().code(), 1009);
}

// The server lets the kernel wake it for large parts of a message only: none may be waited for in vain.
TEST(Protocol, BigMessagesInUnevenPieces) {
  EchoServer server;
  RawClient client = ready_client(server);
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
  for (const size_t last : {1, 1500, 20000, 40000, 200000, 400000, 900000}) {
    const std::string first = make_frame(kBinary, padded_request(1, 5 << 20));
    const std::string second = make_frame(kBinary, padded_request(2, 5 << 20));
    client.socket.send(first.substr(0, first.size() - last));
    pause();
    client.socket.send(first.substr(first.size() - last) + second.substr(0, 7));
    EXPECT_EQ(answer(client.read(5)), 1) << last;
    pause();
    client.socket.send(second.substr(7) + make_frame(kBinary, padded_request(3, 100)));
    EXPECT_EQ(answer(client.read(5)), 2) << last;
    EXPECT_EQ(answer(client.read(5)), 3) << last;
  }
  // Large fragments, and a ping between them.
  const std::string request = padded_request(4, 10 << 20);
  client.socket.send(make_frame(kBinary, request.substr(0, 5 << 20), false));
  pause();
  client.socket.send(make_frame(kPing, "now"));
  EXPECT_EQ(client.read(5).opcode, kPong);
  client.socket.send(make_frame(kContinuation, request.substr(5 << 20)));
  EXPECT_EQ(answer(client.read(5)), 4);
  // A client that goes away in the middle is noticed.
  const std::string half = make_frame(kBinary, padded_request(5, 5 << 20)).substr(0, 700000);
  client.socket.send(half);
  pause();
  client.socket.hang_up();
  for (int i = 0; i < 100 && server.metrics.clients() > 0; ++i) pause();
  EXPECT_EQ(server.metrics.clients(), 0);
}

TEST(Protocol, SixtyFourMebibytesByDefault) {  // field case 17
  EchoServer server;
  RawClient client = ready_client(server);
  client.send(padded_request(1, size_t{64} << 20));
  EXPECT_EQ(answer(client.read()), 1);
}

TEST(Protocol, HandshakeVariants) {
  EchoServer server;
  for (const char* target : {"/", "/any/path?x=1"}) {
    const RawClient client(server.port(), "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n",
                           target);
    EXPECT_THAT(client.response, HasSubstr(" 101 "));
    EXPECT_THAT(client.response, Not(HasSubstr("Sec-WebSocket-Extensions")));
  }
  // An upgrade to something that is no version 13 is refused.
  Socket old(server.port());
  std::string request = upgrade_request();
  request.replace(request.find("Version: 13"), 11, "Version: 8 ");
  old.send(request);
  EXPECT_THAT(old.read_all(), Not(HasSubstr(" 101 ")));
}

TEST(Protocol, WrongFramesCloseTheConnection) {
  EchoServer server;
  const std::vector<std::string> wrong = {std::string("\x82\x01x", 3),                // not masked
                                          make_frame(3, "x"),                         // unknown opcode
                                          make_frame(kContinuation, "x"),             // continues nothing
                                          std::string("\xc2\x81\0\0\0\0x", 7),        // a reserved bit
                                          make_frame(kPing, std::string(126, 'x'))};  // too long for a control frame
  for (const std::string& bytes : wrong) {
    RawClient client = ready_client(server);
    client.socket.send(bytes);
    EXPECT_EQ(client.read().code(), 1002);
  }
  EXPECT_TRUE(eventually([&] { return server.metrics.clients() == 0; }));
  RawClient client = ready_client(server);
  client.send(echo_request(1));
  EXPECT_EQ(answer(client.read()), 1);
}

// A client that closes its socket after the closing handshake, and one that does not.
TEST(Protocol, ClientClosesPolitely) {
  EchoServer server({.ping_s = 0.2});
  for (const bool hangs_up : {true, false}) {
    RawClient client = ready_client(server);
    client.socket.send(make_frame(kClose, std::string("\x03\xe8", 2)));
    const RawFrame close = client.read();
    EXPECT_EQ(close.code(), 1000);
    EXPECT_EQ(client.socket.read_all(), "");
    if (hangs_up) client.socket.hang_up();
    EXPECT_TRUE(eventually([&] { return server.metrics.clients() == 0; })) << hangs_up;
  }
  EXPECT_EQ(server.metrics.failures(), 0U);
}

TEST(Protocol, ApiKey) {
  EchoServer server({.api_key = "secret"});
  for (const char* header : {"", "Authorization: Api-Key wrong\r\n", "Authorization: Bearer secret\r\n"}) {
    const RawClient client(server.port(), header);
    EXPECT_THAT(client.response, HasSubstr("HTTP/1.1 401 Unauthorized"));
  }
  RawClient client(server.port(), "Authorization: Api-Key secret\r\n");
  EXPECT_EQ(client.read().payload, "\x80");
  Socket open(server.port());
  open.send("GET /healthz HTTP/1.1\r\n\r\n");
  EXPECT_THAT(open.read_all(), HasSubstr("200 OK"));
  Socket closed(server.port());
  closed.send("GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(closed.read_all(), HasSubstr(" 401 "));
}

TEST(Protocol, PlainHttp) {
  EchoServer server;
  const auto get = [&](const std::string& request) {
    Socket socket(server.port());
    socket.send(request);
    return socket.read_all();
  };
  const std::string health = get("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(health.starts_with("HTTP/1.1 200 OK\r\n")) << health;
  EXPECT_TRUE(health.ends_with("\r\n\r\nOK\n")) << health;
  for (const char* header : {"Connection: close\r\n", "Content-Length: 3\r\n", "Server: tendon\r\n",
                             "\r\nDate: ", "Content-Type: text/plain; charset=utf-8\r\n"}) {
    EXPECT_THAT(health, HasSubstr(header));
  }
  const std::string head = get("HEAD /healthz HTTP/1.1\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
  EXPECT_THAT(get("GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr("tendon_requests_total 0\n"));
  EXPECT_THAT(get("GET / HTTP/1.1\r\n\r\n"), HasSubstr("<!doctype html>"));
  EXPECT_THAT(get("GET /status.json HTTP/1.1\r\n\r\n"), HasSubstr("\"requests\":0"));
  EXPECT_THAT(get("GET /other HTTP/1.1\r\n\r\n"), HasSubstr("426 Upgrade Required"));
  EXPECT_THAT(get("POST /healthz HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), HasSubstr(" 405 "));
  // Neither HTTP nor short: no answer, and the server lives.
  EXPECT_EQ(get("\x16\x03\x01 hello\r\n\r\n"), "");
  EXPECT_EQ(get("GET /" + std::string(20000, 'a') + " HTTP/1.1\r\n\r\n"), "");
  EXPECT_THAT(get("GET /healthz HTTP/1.0\r\n\r\n"), HasSubstr("200 OK"));
}

}  // namespace
}  // namespace tendon::test
