// A tiny model behind the server: what clients get is what the policy gives, alone and in batches.
#include <gmock/gmock.h>

#include <thread>

#include "../support/copying_backend.h"
#include "raw_client.h"
#include "served.h"

namespace tendon::test {
namespace {

using testing::HasSubstr;

// One preset of every robot and model; also pitfall 2, shapes.
TEST(ServedPolicy, AnswersAsThePolicy) {
  for (const auto& [model, preset, width] : {std::tuple{"tiny_pi0", "pi0_aloha", 14},
                                             {"tiny_pi05", "pi05_aloha", 14},
                                             {"tiny_pi0", "pi0_droid", 8},
                                             {"tiny_pi05", "pi05_droid", 8},
                                             {"tiny_pi0", "pi0_libero", 7},
                                             {"tiny_pi05", "pi05_libero", 7},
                                             {"tiny_pi0", "pi0_ur5", 7}}) {
    SCOPED_TRACE(preset);
    Served served(model, preset);
    const std::string own = served.request(1, served.noise(5));
    const std::string drawn = served.request(2);
    const std::vector<double> own_expected = served.expected(own, served.noise(5));
    const std::vector<double> drawn_expected = served.expected(drawn, served.noise(0, 0));
    served.start();
    WireClient client = served.connect();
    client.write(own);
    const std::vector<double> actions = actions_of(client.read());
    EXPECT_EQ(actions.size(), static_cast<size_t>(4 * width));
    EXPECT_EQ(actions, own_expected);
    client.write(drawn);
    EXPECT_EQ(actions_of(client.read()), drawn_expected) << "the first draw of seed 0";
  }
}

// Field case 19: the k-th request of a fresh server gets the k-th draw, whoever sends it; draws differ.
TEST(ServedPolicy, SeedsAreReproducible) {
  std::vector<std::vector<double>> first;
  for (const int clients : {1, 3}) {
    Served served("tiny_pi0", "pi0_droid", 1, DType::kBf16, 42);
    served.start();
    std::vector<WireClient> connected;
    for (int i = 0; i < clients; ++i) connected.push_back(served.connect());
    std::vector<std::vector<double>> answers;
    for (int k = 0; k < 6; ++k) {
      WireClient& client = connected[static_cast<size_t>(k % clients)];
      client.write(served.request(7));
      answers.push_back(actions_of(client.read()));
      for (int other = 0; other < k; ++other) EXPECT_NE(answers.back(), answers[static_cast<size_t>(other)]);
    }
    if (first.empty()) first = answers;
    EXPECT_EQ(answers, first);
  }
}

TEST(ServedPolicy, SameRequestHundredTimes) {
  Served served("tiny_pi05", "pi05_droid");
  served.start();
  WireClient client = served.connect();
  const std::string request = served.request(3, served.noise(3));
  client.write(request);
  const std::vector<double> first = actions_of(client.read());
  for (int i = 1; i < 100; ++i) {
    client.write(request);
    ASSERT_EQ(actions_of(client.read()), first);
  }
}

// The CPU backend's products round differently for other numbers of rows, so answers in a batch are those of single
// calls up to rounding: far less than what lies between the answers of two clients.
TEST(ServedPolicy, BatchesGiveTheAnswersOfSingleCalls) {
  for (const auto& [model, preset] : {std::pair{"tiny_pi0", "pi0_aloha"}, {"tiny_pi05", "pi05_droid"}}) {
    for (const DType precision : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(fmt::format("{} {}", preset, dtype_name(precision)));
      Served served(model, preset, 4, precision);
      constexpr int kClients = 7;
      std::vector<std::string> requests;
      std::vector<std::vector<double>> expected;
      for (int i = 0; i < kClients; ++i) {
        const auto number = static_cast<uint64_t>(i);
        requests.push_back(served.request(number, served.noise(number), i % 3 != 0));
        expected.push_back(served.expected(requests.back(), served.noise(number)));
      }
      for (size_t i = 0; i < kClients; ++i) {
        for (size_t j = 0; j < i; ++j) {
          double difference = 0;
          for (size_t k = 0; k < expected[i].size(); ++k)
            difference = std::max(difference, std::abs(expected[i][k] - expected[j][k]));
          EXPECT_GT(difference, 1) << "an answer of another client would be noticed";
        }
      }
      served.start(2000);
      std::vector<std::thread> threads;
      std::array<int, kClients> right{};
      for (int i = 0; i < kClients; ++i) {
        threads.emplace_back([&, i] {
          const auto at = static_cast<size_t>(i);
          WireClient client = served.connect();
          for (int round = 0; round < 20; ++round) {
            client.write(requests[at]);
            const std::vector<double> actions = actions_of(client.read());
            right[at] += std::ranges::equal(actions, expected[at], [&](double a, double b) {
              return std::abs(a - b) <= (precision == DType::kF32 ? 1e-4 : 0.2);
            });
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (const int count : right) EXPECT_EQ(count, 20);
      served.stop();
      EXPECT_THAT(served.metrics.prometheus(), testing::Not(HasSubstr("tendon_batch_size_bucket{le=\"2\"} 140\n")))
          << "no batch was larger than two";
    }
  }
}

// A request that fails in the model does not take its batch along.
TEST(ServedPolicy, AFailureStaysWithItsRequest) {
  Served served("tiny_pi0", "pi0_droid", 2);
  const std::string good = served.request(1, served.noise(1));
  const std::vector<double> expected = served.expected(good, served.noise(1));
  std::vector<float> huge = served.noise(2);
  std::ranges::fill(huge, std::numeric_limits<float>::max());  // infinite in bf16
  const std::string bad = served.request(2, huge);
  served.start(200000);
  std::thread other([&] {
    WireClient client = served.connect();
    client.write(bad);
    const Frame frame = client.read();
    ASSERT_TRUE(frame.is_text);
    EXPECT_THAT(frame.bytes, HasSubstr("non-finite action"));
    EXPECT_THROW(client.read(), Error);
  });
  WireClient client = served.connect();
  client.write(good);
  EXPECT_EQ(actions_of(client.read()), expected);
  other.join();
}

// Field case 25 and pitfall 24: clients with and without previous chunks, side by side.
TEST(ServedPolicy, ContinuesChunks) {
  Served plain("tiny_pi0", "pi0_aloha");
  const std::string stock = plain.request(1, plain.noise(1));
  const std::vector<double> expected = plain.expected(stock, plain.noise(1));
  Served served("tiny_pi0", "pi0_aloha", 2, DType::kBf16, 0, Chunking{.mode = ChunkingMode::kInpaint});
  served.start();
  WireClient client = served.connect();
  client.write(stock);
  const std::string stock_reply = client.read().bytes;
  EXPECT_THAT(stock_reply, testing::Not(HasSubstr("rtc")));
  const std::vector<double> first = actions_of({.is_text = false, .bytes = stock_reply});
  EXPECT_EQ(first, expected);

  // The last reply as it is, one row executed since, one more until the answer.
  const auto continued = [&](int64_t start, int64_t delay) {
    std::string message = served.request(2, served.noise(2));
    WireWriter extra;
    const std::array<int64_t, 2> shape{4, 14};
    extra.text("prev_actions").array(shape, first);
    extra.text("prev_actions_start").integer(start).text("prev_actions_d").integer(delay);
    message[0] = static_cast<char>(message[0] + 3);  // a map of up to 15 entries
    return message + extra.take();
  };
  client.write(continued(1, 2));
  const Frame frame = client.read();
  const std::vector<double> second = actions_of(frame);
  ASSERT_EQ(second.size(), 4U * 14);
  for (size_t i = 0; i < 2 * 14; ++i) EXPECT_NEAR(second[i], first[14 + i], 1e-4) << i;
  const WireValue reply = decode_message(std::as_bytes(std::span(frame.bytes)));
  const auto number = [&](const char* key) {
    const WireValue* const value = find_key(*reply.get_if<WireMap>(), key);
    return value == nullptr ? -1.0 : to_numbers(*value, key).front();
  };
  EXPECT_EQ(number("rtc_d_eff"), 2);
  EXPECT_EQ(number("rtc_start"), 1);
  EXPECT_EQ(number("rtc_overlap"), 3);
  EXPECT_EQ(number("rtc_prefix_attention_horizon"), 3);
  EXPECT_EQ(number("rtc_active"), 1);
  client.write(stock);
  EXPECT_EQ(actions_of(client.read()), expected);

  client.write(continued(2, 3));
  const Frame error = client.read();
  EXPECT_TRUE(error.is_text);
  EXPECT_THAT(error.bytes, HasSubstr("delay of 3 rows"));
}

// Large pictures are scaled while the rest of the message comes, by several threads.
TEST(ServedPolicy, LargePicturesAreWorkedOnWhileTheyCome) {
  for (const char* preset : {"pi0_aloha", "pi0_droid"}) {
    SCOPED_TRACE(preset);
    Served served("tiny_pi0", preset);
    std::vector<std::string> requests;
    std::vector<std::vector<double>> expected;
    for (uint64_t number = 0; number < 3; ++number) {
      requests.push_back(served.request(number, served.noise(number), true, 900, 1200));
      expected.push_back(served.expected(requests.back(), served.noise(number)));
    }
    EXPECT_NE(expected[0], expected[1]);
    served.start();
    std::vector<std::thread> clients;
    for (size_t first = 0; first < 3; ++first) {
      clients.emplace_back([&, first] {
        WireClient client = served.connect();
        for (size_t i = 0; i < 6; ++i) {
          const size_t at = (first + i) % 3;
          client.write(requests[at]);
          EXPECT_EQ(actions_of(client.read()), expected[at]);
        }
        client.write(requests[first]);  // and goes away without its answer
        RawClient half(std::stoi(served.url().substr(served.url().rfind(':') + 1)));
        const std::string frame = make_frame(kBinary, requests[first]);
        half.socket.send(frame.substr(0, frame.size() / 2));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        half.socket.hang_up();  // in the middle of its pictures
      });
    }
    for (std::thread& client : clients) client.join();
  }
}

// Field cases 10 and 20: with and without the wrists, both prepared.
TEST(ServedPolicy, OptionalCameras) {
  Served served("tiny_pi0", "pi0_aloha", 2);
  served.start();
  WireClient client = served.connect();
  for (const bool wrists : {true, false}) {
    client.write(served.request(1, {}, wrists));
    EXPECT_EQ(actions_of(client.read()).size(), 4U * 14);
  }
}

// The engine scales what fits into its pool, the host the rest: nobody can tell, and nothing is allocated.
TEST(ServedPolicy, PicturesOfAnySize) {
  auto owned = std::make_unique<CopyingBackend>();
  CopyingBackend& backend = *owned;
  Served card(std::move(owned), data_dir() / "tiny_pi0", "pi0_aloha", nullptr, 2, DType::kF32, 0, {}, 60000);
  Served host(std::make_unique<CopyingBackend>(), data_dir() / "tiny_pi0", "pi0_aloha", nullptr, 2, DType::kF32, 0, {});
  ASSERT_NE(card.engine().frames(), nullptr);
  card.start();
  host.start();
  const int allocated = backend.allocations + backend.host_allocations;
  WireClient on_card = card.connect(), on_host = host.connect();
  uint64_t number = 0;
  for (const auto& [height, width] : {std::pair{40, 30}, {28, 28}, {31, 57}, {9, 5}, {80, 90}, {200, 300}, {40, 30}}) {
    ++number;
    const std::string request = card.request(number, card.noise(number), true, height, width);
    on_card.write(request);
    on_host.write(request);
    const std::vector<double> actions = actions_of(on_card.read());
    EXPECT_FALSE(actions.empty());
    EXPECT_EQ(actions, actions_of(on_host.read())) << height << " x " << width;
  }
  EXPECT_EQ(backend.allocations + backend.host_allocations, allocated);
}

TEST(WireClient, Errors) {
  const auto message_of = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  for (const char* url : {"localhost:1", "http://localhost", "ws://", "ws://:80", "ws://host:port"})
    EXPECT_THAT(message_of([&] { WireClient client(url); }), HasSubstr("ws://HOST:PORT"));
  EXPECT_THAT(message_of([&] { WireClient client("ws://127.0.0.1:1"); }), HasSubstr("refused"));
  Served served("tiny_pi0", "pi0_droid");
  served.start();
  WireClient client(served.url(), {.timeout_s = 0.2});
  client.read();
  EXPECT_THAT(message_of([&] { client.read(); }), HasSubstr("no answer within"));
  WireClient second = served.connect();
  second.write("\xc1");
  EXPECT_TRUE(second.read().is_text);
  EXPECT_THAT(message_of([&] { second.read(); }), HasSubstr("1011"));
  WireClient third = served.connect();
  third.close();
}

}  // namespace
}  // namespace tendon::test
