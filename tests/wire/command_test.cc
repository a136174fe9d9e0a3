// `tendon serve`, `load` and `run --replay` as processes: start, signals, recordings, refusals.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "policy/preset/presets.h"
#include "process.h"
#include "raw_client.h"
#include "server/policy/example_request.h"
#include "wire/client.h"
#include "wire/message.h"

namespace tendon::test {
namespace {

using testing::HasSubstr;

Args plus(Args list, const Args& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

const Args kServe = {"serve",    "--checkpoint", "synthetic:pi0-tiny", "--preset", "pi0_droid",
                     "--tokens", "2,5,7",        "--threads",          "1",        "--port",
                     "0"};

void refused(const Args& args, int code, const std::string& part) {
  Process process(args);
  EXPECT_EQ(process.wait(), code) << process.err();
  EXPECT_THAT(process.err(), HasSubstr(part));
}

// tendon tune on three requests of a recording of kServe.
Args calibration(const std::string& recording, const std::string& out) {
  return {"tune",        "--checkpoint", "synthetic:pi0-tiny",
          "--preset",    "pi0_droid",    "--tokens",
          "2,5,7",       "--threads",    "1",
          "--calibrate", recording,      "--observations",
          "3",           "--out",        out};
}

TEST(ServeCommand, RecordsAndReplays) {
  const TempDir temp;
  const std::string directory = temp.path() / "calls";
  Process server(plus(kServe, {"--record", directory, "--seed", "5", "--log-requests"}));
  const std::string url = "ws://127.0.0.1:" + std::to_string(server.port());
  const Preset& preset = find_preset("pi0_droid");
  WireClient client(url);
  EXPECT_THAT(client.read().bytes, HasSubstr("pi0_droid"));
  for (uint64_t i = 0; i < 3; ++i) {
    client.write(example_request(preset, {.height = 60, .width = 80, .number = i}));
    EXPECT_FALSE(client.read().is_text);
  }
  client.write("\x80");
  EXPECT_TRUE(client.read().is_text);

  Process load({"load", "--url", url, "--clients", "2", "--seconds", "0.5", "--json", "-", "--reconnect-every", "3"});
  EXPECT_EQ(load.wait(), 0) << load.err();
  const nlohmann::json figures = nlohmann::json::parse(load.out());
  EXPECT_EQ(figures["lost"], 0);
  EXPECT_EQ(figures["wrong"], 0);
  EXPECT_EQ(figures["checked"], true);
  EXPECT_GT(figures["replies"], 2);
  EXPECT_GT(figures["ms"]["total"]["p50"], figures["ms"]["infer"]["p50"]);
  // Two clients take turns: what one waits for the other is overhead and no rest.
  EXPECT_GT(figures["ms"]["overhead"]["p50"], figures["ms"]["rest"]["p50"]);

  EXPECT_EQ(server.stop(SIGTERM), 0);
  EXPECT_THAT(server.err(), HasSubstr("listening on 127.0.0.1 only"));
  EXPECT_THAT(server.err(), HasSubstr("event=request client=1"));
  EXPECT_THAT(server.err(), HasSubstr("event=stopped"));

  const Args replay = {"run",      "--checkpoint", "synthetic:pi0-tiny", "--preset", "pi0_droid",
                       "--tokens", "2,5,7",        "--threads",          "1",        "--replay",
                       directory,  "--json"};
  Process same(replay);
  EXPECT_EQ(same.wait(), 0) << same.err();
  const nlohmann::json result = nlohmann::json::parse(same.out());
  EXPECT_EQ(result["recorded_errors"], 1);
  EXPECT_EQ(result["largest_difference"], 0);
  EXPECT_EQ(result["equal"], result["run"]);
  EXPECT_EQ(result["calls"], 4 + figures["replies"].get<int>());
  const std::string scales = temp.path() / "scales.safetensors";
  Process calibrate(calibration(directory, scales));
  EXPECT_EQ(calibrate.wait(), 0) << calibrate.err();
  EXPECT_THAT(calibrate.out(), HasSubstr("static scales of 3 observations"));
  Process with_scales(plus(replay, {"--precision", "int8", "--scales", scales, "--tolerance", "10"}));
  EXPECT_EQ(with_scales.wait(), 0) << with_scales.err();
  Process other(plus(replay, {"--steps", "3"}));  // another schedule gives other actions
  EXPECT_EQ(other.wait(), 1) << other.err();
  refused(plus(kServe, {"--record", directory}), 3, "holds a recording already");
}

TEST(ServeCommand, ThreadsThatResizeChangeNoAction) {
  std::vector<std::vector<double>> actions;
  for (const char* const threads : {"1", "3"}) {
    Process server(plus(kServe, {"--resize", "host", "--resize-threads", threads}));
    WireClient client("ws://127.0.0.1:" + std::to_string(server.port()));
    client.read();
    client.write(example_request(find_preset("pi0_droid"), {.height = 480, .width = 640}));
    const Frame reply = client.read();
    ASSERT_FALSE(reply.is_text) << reply.bytes;
    const WireValue message = decode_message(std::as_bytes(std::span(reply.bytes)));
    actions.push_back(to_numbers(*find_key(*message.get_if<WireMap>(), "actions"), "actions"));
  }
  EXPECT_EQ(actions[0], actions[1]);
}

// Field case 25: the metadata says whether chunking is offered, and how.
TEST(ServeCommand, OffersRealTimeChunking) {
  for (const char* const mode : {"off", "guided", "trained"}) {
    Args args = plus(kServe, {"--rtc", mode, "--rtc-max-delay", "4", "--steps", "4"});
    Process server(args);
    WireClient client("ws://127.0.0.1:" + std::to_string(server.port()));
    const std::string bytes = client.read().bytes;
    const WireValue metadata = decode_message(std::as_bytes(std::span(bytes)));
    const WireMap& tendon = *find_key(*metadata.get_if<WireMap>(), "tendon")->get_if<WireMap>();
    const bool is_on = std::string(mode) != "off";
    EXPECT_EQ(to_numbers(*find_key(tendon, "rtc"), "rtc").front(), is_on ? 1 : 0);
    ASSERT_EQ(find_key(tendon, "rtc_mode") != nullptr, is_on);
    EXPECT_EQ(find_key(tendon, "rtc_max_guidance") != nullptr, std::string(mode) == "guided");
    if (is_on) {
      EXPECT_EQ(to_text(*find_key(tendon, "rtc_mode"), "rtc_mode"), mode);
    }
    EXPECT_EQ(server.stop(SIGTERM), 0);
  }
  refused(plus(kServe, {"--rtc", "trained"}), 2, "--rtc-max-delay");
  refused(plus(kServe, {"--rtc", "on"}), 2, "--rtc");
}

TEST(ServeCommand, ServesARobotFromAFile) {
  const std::string preset = std::string(TENDON_SOURCE_DIR) + "/examples/preset/my_arm.json";
  Process server({"serve", "--checkpoint", "synthetic:pi05-tiny", "--preset", preset, "--tokens", "2,5", "--threads",
                  "1", "--port", "0"});
  const std::string url = "ws://127.0.0.1:" + std::to_string(server.port());
  EXPECT_THAT(WireClient(url).read().bytes, HasSubstr("my_arm"));
  Process load({"load", "--url", url, "--preset", preset, "--seconds", "0.3"});
  EXPECT_EQ(load.wait(), 0) << load.err();
  EXPECT_EQ(server.stop(SIGTERM), 0);
  refused({"serve", "--checkpoint", "synthetic:pi0-tiny", "--preset", "/none.json", "--tokens", "2"}, 3, "/none.json");
}

// The example of a C++ controller, with and without chunks that go on from each other.
TEST(ServeCommand, DrivesTheExampleRobot) {
  const TempDir temp;
  for (const char* const mode : {"off", "guided"}) {
    Process server(plus(kServe, {"--rtc", mode, "--steps", "2", "--record", temp.path() / mode}));
    const std::string url = "ws://127.0.0.1:" + std::to_string(server.port());
    EXPECT_EQ(std::system((std::string(TENDON_ROBOT_LOOP) + " " + url + " 1 50 > /dev/null").c_str()), 0);
    EXPECT_EQ(server.stop(SIGTERM), 0);
    EXPECT_THAT(server.err(), HasSubstr("errors=0"));
  }
  Process calibrate(calibration(temp.path() / "guided", temp.path() / "scales.safetensors"));
  EXPECT_EQ(calibrate.wait(), 0) << calibrate.err();
  EXPECT_THAT(calibrate.out(), HasSubstr("3 observations"));
  EXPECT_NE(std::system(TENDON_ROBOT_LOOP " ws://127.0.0.1:1 1 2> /dev/null"), 0);
}

TEST(ServeCommand, InterruptClosesClients) {
  Process server(kServe);
  RawClient client(server.port());
  EXPECT_EQ(client.read().opcode, kBinary);
  std::thread closing([&] {
    const RawFrame close = client.read();
    EXPECT_EQ(close.code(), 1001);
    client.finish(close);
  });
  EXPECT_EQ(server.stop(SIGINT), 0);
  closing.join();
}

TEST(ServeCommand, KeyFromAFile) {
  const TempDir temp;
  write_text(temp.path() / "key", "secret\n");
  Process server(plus(kServe, {"--api-key-file", temp.path() / "key", "--host", "127.0.0.1"}));
  const std::string url = "ws://127.0.0.1:" + std::to_string(server.port());
  EXPECT_THROW(WireClient(url, {.timeout_s = 10}), Error);
  WireClient client(url, {.api_key = "secret"});
  EXPECT_FALSE(client.read().is_text);
  EXPECT_THAT(server.err(), testing::Not(HasSubstr("secret")));
  EXPECT_EQ(server.stop(SIGTERM), 0);
}

TEST(ServeCommand, Refusals) {
  Process server(kServe);
  const std::string port = std::to_string(server.port());
  Args taken = kServe;
  taken.back() = port;
  refused(taken, 3, "port " + port);
  refused(plus(kServe, {"--host", "robot"}), 2, "'robot' is not an address");
  refused(plus(kServe, {"--max-batch", "0"}), 2, "--max-batch");
  refused(plus(kServe, {"--resize", "card", "--backend", "cpu"}), 2, "--resize card");
  refused(plus(kServe, {"--resize", "client"}), 2, "--resize");
  refused(plus(kServe, {"--api-key-file", "/nonexistent"}), 3, "--api-key-file");
  refused({"serve", "--checkpoint", "synthetic:pi0-tiny", "--preset", "pi0_droid"}, 2, "--tokenizer");
  refused({"serve", "--checkpoint", "synthetic:pi0-tiny", "--preset", "pi05_droid", "--tokens", "2", "--port", "0"}, 3,
          "pi05 model");
  refused({"load", "--url", "ws://127.0.0.1:1", "--seconds", "1"}, 3, "refused");
  refused({"load", "--url", "127.0.0.1:1"}, 2, "ws://HOST:PORT");
  refused({"run", "--checkpoint", "synthetic:pi0-tiny", "--preset", "pi0_droid", "--tokens", "2", "--replay", "/none"},
          3, "/none");
}

}  // namespace
}  // namespace tendon::test
