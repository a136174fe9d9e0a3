// The C++ client of include/tendon/client.hpp: against the server, and its queue alone.
#include "tendon/client.hpp"

#include <gmock/gmock.h>

#include "echo_server.h"
#include "wire/client.h"

namespace tendon::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

PolicyReply chunk(int64_t horizon, double first) {
  PolicyReply reply{.horizon = horizon, .width = 2, .actions = {}};
  for (int64_t i = 0; i < horizon; ++i) {
    reply.actions.push_back(first + static_cast<double>(i));
    reply.actions.push_back(-1);
  }
  return reply;
}

// A client sees the answers of its own requests, and errors as the server's.
TEST(PolicyClient, AsksTheServer) {
  EchoServer server;
  const std::string url = "ws://127.0.0.1:" + std::to_string(server.port());
  PolicyClient client(url);
  EXPECT_FALSE(client.continues_chunks());
  EXPECT_EQ(client.horizon(), 0);
  for (const double x : {1.5, -2.0}) {
    PolicyRequest request;
    request.numbers("x", std::span(&x, 1));
    const PolicyReply reply = client.infer(request);
    EXPECT_EQ(reply.horizon, 3);
    EXPECT_EQ(reply.width, 2);
    EXPECT_EQ(reply.actions, std::vector<double>(6, x));
    EXPECT_EQ(reply.row(2).size(), 2U);
    EXPECT_EQ(reply.infer_ms, 1);
    EXPECT_GT(reply.server_ms, 0);
  }
  try {
    client.infer(PolicyRequest().prompt("no x"));
    ADD_FAILURE();
  } catch (const ClientError& error) {
    EXPECT_TRUE(error.from_server());
    EXPECT_THAT(error.what(), HasSubstr("lacks the key 'x'"));
  }
  try {
    client.infer(PolicyRequest());
    ADD_FAILURE();
  } catch (const ClientError& error) {
    EXPECT_FALSE(error.from_server());
  }
  EXPECT_THROW(PolicyClient("ws://127.0.0.1:1"), ClientError);
  EXPECT_THROW(PolicyClient("http://robot"), ClientError);
}

// Every length of a frame's header, one portion and several.
TEST(WireClientTest, WritesMessagesOfAnyLength) {
  EchoServer server;
  WireClient client("ws://127.0.0.1:" + std::to_string(server.port()));
  client.read();
  const size_t small = padded_request(1, 0).size();
  double x = 0;
  for (const size_t bytes : {size_t{20}, size_t{125}, size_t{126}, size_t{127}, size_t{65535}, size_t{65536},
                             size_t{1} << 20, (size_t{1} << 20) + 1, (size_t{2} << 20) + 3, size_t{19} << 20}) {
    ++x;
    for (const size_t more : {size_t{0}, size_t{1}, size_t{3}}) {  // the pad's own header takes some bytes
      const std::string message = padded_request(x, bytes - std::min(bytes, small) + more);
      client.write(message);
      const Frame frame = client.read();
      EXPECT_EQ(answer({.opcode = kBinary, .payload = frame.bytes}), x) << message.size();
    }
  }
}

TEST(PolicyClient, SilentServersAreGivenUp) {
  EchoServer server;
  PolicyClient client("ws://127.0.0.1:" + std::to_string(server.port()), {.timeout_s = 0.1});
  const double x = 1;
  PolicyRequest request;
  request.numbers("x", std::span(&x, 1)).text("wait", "yes");
  try {
    client.infer(request);
    ADD_FAILURE();
  } catch (const ClientError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no answer within"));
  }
}

TEST(PolicyRequest, WritesTheKeysOfAPreset) {
  const std::vector<uint8_t> rgb(2 * 4 * 3, 7);
  const std::vector<double> state = {1, 2};
  PolicyRequest request;
  request.picture("base", rgb, 2, 4)
      .picture_in("images", "cam_high", rgb, 2, 4)
      .picture_in("images", "cam_low", rgb, 4, 2);
  request.numbers("state", std::vector<double>(9))
      .numbers("state", state)
      .prompt("go")
      .continue_from(chunk(3, 5), 1, 2);
  const std::string bytes = request.encode();
  const WireValue message = decode_message(std::as_bytes(std::span(bytes)));
  const WireMap& map = *message.get_if<WireMap>();
  EXPECT_EQ(map.size(), 7U);
  EXPECT_EQ(find_key(map, "base")->describe(), "an array |u1 (2, 4, 3)");
  const WireMap& images = *find_key(map, "images")->get_if<WireMap>();
  EXPECT_EQ(find_key(images, "cam_high")->describe(), "an array |u1 (3, 2, 4)");
  EXPECT_EQ(find_key(images, "cam_low")->describe(), "an array |u1 (3, 4, 2)");
  EXPECT_EQ(to_numbers(*find_key(map, "state"), "state"), state) << "the last one counts";
  EXPECT_EQ(to_text(*find_key(map, "prompt"), "prompt"), "go");
  EXPECT_EQ(to_numbers(*find_key(map, "prev_actions"), "").at(4), 7);
  EXPECT_EQ(to_numbers(*find_key(map, "prev_actions_start"), "").at(0), 1);
  EXPECT_EQ(to_numbers(*find_key(map, "prev_actions_d"), "").at(0), 2);
  EXPECT_THROW(request.picture("base", rgb, 3, 4), std::invalid_argument);
  EXPECT_THROW(request.picture("base", rgb, -2, -4), std::invalid_argument);
}

// Rows by time: those that are late when the chunk comes are left out, the last one is held.
TEST(ActionQueue, GivesTheRowThatIsDue) {
  ActionQueue queue(10ms);
  const ActionQueue::Clock::time_point start = ActionQueue::Clock::now();
  EXPECT_TRUE(queue.next(start).action.empty());
  EXPECT_FALSE(queue.in_use(start));
  queue.put(chunk(4, 100), start);
  const auto value = [&](auto after) { return queue.next(start + after).action.at(0); };
  EXPECT_EQ(value(0ms), 100);
  EXPECT_EQ(value(9ms), 100);
  EXPECT_EQ(value(25ms), 102) << "rows 0 and 1 are over";
  EXPECT_EQ(queue.next(start + 25ms).left, 1);
  EXPECT_EQ(queue.held_steps(), 0);
  const ActionQueue::Next late = queue.next(start + 70ms);
  EXPECT_TRUE(late.is_held);
  EXPECT_EQ(late.action.at(0), 103);
  EXPECT_EQ(late.row, 3);
  EXPECT_EQ(queue.held_steps(), 1);
  EXPECT_EQ(queue.in_use(start + 25ms)->executed, 2);
  EXPECT_EQ(queue.in_use(start + 900ms)->executed, 4);

  queue.put(chunk(4, 200), start + 60ms);  // its answer took a while
  EXPECT_EQ(value(85ms), 202);
  EXPECT_EQ(value(50ms), 200) << "before the chunk: its first row";
  EXPECT_THROW(ActionQueue(0ms), std::invalid_argument);
}

}  // namespace
}  // namespace tendon::test
