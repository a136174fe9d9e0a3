// Connections that come, go, break and hang; start and stop of the server.
#include <gmock/gmock.h>

#include "base/check.h"
#include "echo_server.h"

namespace tendon::test {
namespace {

using testing::HasSubstr;

// Pitfall 25.
TEST(Lifetime, ClientKilledDuringItsInference) {
  EchoServer server;
  RawClient other = ready_client(server);
  {
    RawClient client = ready_client(server);
    client.send(echo_request(1, true));
    server.model.await_waiting();
    client.send(echo_request(2));  // waits behind it and is never run
    client.socket.reset();
  }
  EXPECT_TRUE(eventually([&] { return server.metrics.clients() == 1; })) << "noticed while the model is busy";
  server.model.open();
  other.send(echo_request(3));
  EXPECT_EQ(answer(other.read()), 3);
  EXPECT_EQ(server.model.batches(), (std::vector<size_t>{1, 1}));
}

TEST(Lifetime, HundredConnectionsComeAndGo) {
  EchoServer server;
  RawClient other = ready_client(server);
  for (int i = 0; i < 100; ++i) {
    RawClient client(server.port());
    if (i % 4 == 1) client.read();
    if (i % 4 == 2) client.send(echo_request(i));
    if (i % 4 == 3) client.socket.reset();
  }
  for (int i = 0; i < 20; ++i) Socket(server.port()).send("GET /hea");
  EXPECT_TRUE(eventually([&] { return server.metrics.clients() == 1; }));
  other.send(echo_request(3));
  EXPECT_EQ(answer(other.read()), 3);
}

// A client that sends and never reads: its own requests stop, memory is bounded, others are answered.
TEST(Lifetime, ReaderThatNeverReads) {
  EchoServer server({.max_message_bytes = 4 << 20});
  RawClient deaf = ready_client(server);
  RawClient other = ready_client(server);
  const std::string frame = make_frame(kBinary, padded_request(1, 500000));
  size_t sent = 0, last = 1;
  const Clock::time_point start = Clock::now();
  while (seconds_since(start) < 2 && sent < (size_t{200} << 20)) {
    last = deaf.socket.send_some(frame);
    sent += last;
    if (last < frame.size()) break;
  }
  for (int i = 0; i < 20; ++i) {
    const Clock::time_point begin = Clock::now();
    other.send(echo_request(i));
    EXPECT_EQ(answer(other.read()), i);
    EXPECT_LT(seconds_since(begin), 1);
  }
}

TEST(Lifetime, TooManyClients) {
  EchoServer server({.max_clients = 2});
  RawClient first = ready_client(server);
  {
    RawClient second = ready_client(server);
    const RawClient third(server.port());
    EXPECT_THAT(third.response, HasSubstr("503"));
  }
  EXPECT_TRUE(eventually([&] { return server.metrics.clients() == 1; }));
  RawClient second = ready_client(server);
}

// Clients that answer pings stay; those that do not are dropped, but not while their request runs.
TEST(Lifetime, PingsTellWhoIsThere) {
  EchoServer server({.ping_s = 0.05, .client_timeout_s = 0.5});
  RawClient silent = ready_client(server);
  RawClient busy = ready_client(server);
  busy.send(echo_request(7, true));
  RawClient alive = ready_client(server);
  const Clock::time_point start = Clock::now();
  while (seconds_since(start) < 1.5) {
    try {
      alive.read(0.02);
    } catch (const std::runtime_error& error) {
      ASSERT_STREQ(error.what(), "the server is silent");
    }
  }
  EXPECT_GE(alive.pings, 5);
  EXPECT_EQ(server.metrics.clients(), 2);
  server.model.open();
  EXPECT_EQ(answer(busy.read()), 7);
  alive.send(echo_request(8));
  EXPECT_EQ(answer(alive.read()), 8);
}

// Field case 20: connections are refused until the server runs. Field case 15: a port that is taken.
TEST(Lifetime, ListensOnlyWhenItRuns) {
  const Server server({.port = 0});
  EXPECT_FALSE(Socket(server.port()).connected());
  EchoServer running;
  try {
    const Server second({.port = running.port()});
    ADD_FAILURE() << "took a port that is in use";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
    EXPECT_THAT(error.what(), HasSubstr(std::to_string(running.port())));
  }
  EXPECT_THROW(Server({.host = "not an address"}), Error);
  EXPECT_THROW(Server({.port = 70000}), Error);
}

TEST(Lifetime, StopAnswersWhatWasReceived) {
  EchoServer server;
  RawClient idle = ready_client(server);
  RawClient busy = ready_client(server);
  RawClient waiting = ready_client(server);
  busy.send(echo_request(1, true));
  server.model.await_waiting();
  waiting.send(echo_request(2));
  waiting.send(echo_request(3));
  EXPECT_TRUE(eventually([&] {  // both are read
    waiting.socket.send(make_frame(kPing, ""));
    return waiting.read().opcode == kPong;
  }));
  server.begin_stop();
  RawFrame close = idle.read();
  EXPECT_EQ(close.code(), 1001);
  idle.finish(close);
  EXPECT_TRUE(eventually([&] { return !Socket(server.port()).connected(); }));
  server.model.open();
  EXPECT_EQ(answer(busy.read()), 1);
  close = busy.read();
  EXPECT_EQ(close.code(), 1001);
  busy.finish(close);
  EXPECT_EQ(answer(waiting.read()), 2);
  EXPECT_EQ(answer(waiting.read()), 3);
  EXPECT_EQ(waiting.read().code(), 1001);
  server.stop();  // although `waiting` does not answer the close
}

TEST(Lifetime, StopDoesNotWaitForEver) {
  EchoServer server({.drain_s = 0.2});
  RawClient busy = ready_client(server);
  RawClient waiting = ready_client(server);
  busy.send(echo_request(1, true));
  server.model.await_waiting();
  waiting.send(echo_request(2));
  server.begin_stop();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  server.stop();
  EXPECT_LE(server.model.batches().size(), 1U) << "what waited is dropped";
}

}  // namespace
}  // namespace tendon::test
