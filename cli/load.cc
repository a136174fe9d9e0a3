// tendon load: clients of a policy server that measure it and check what it answers.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "base/check.h"
#include "commands.h"
#include "engine/noise.h"
#include "policy/preset/preset_file.h"
#include "server/policy/example_request.h"
#include "session.h"
#include "wire/client.h"
#include "wire/message.h"

namespace tendon::cli {
namespace {

struct LoadOptions {
  std::string url = "ws://127.0.0.1:8000", preset, json, api_key;
  int clients = 1, height = 224, width = 224;
  double seconds = 10, rate = 0, tolerance = 0, timeout_s = 60;
  int64_t reconnect_every = 0;
  bool free_noise = false;
};

// What the first frame of a server says about it; nothing of a server that is not tendon.
struct ServerFacts {
  int64_t horizon = 0, action_dim = 0, action_width = 0;
  std::string preset;
};

ServerFacts read_facts(const Frame& frame) {
  ServerFacts facts;
  const WireValue message = decode_message(std::as_bytes(std::span(frame.bytes)));
  const auto* map = message.get_if<WireMap>();
  const WireValue* const own = map == nullptr ? nullptr : find_key(*map, "tendon");
  const auto* entries = own == nullptr ? nullptr : own->get_if<WireMap>();
  if (entries == nullptr) return facts;
  const auto integer = [&](std::string_view key) {
    const WireValue* const value = find_key(*entries, key);
    const auto* number = value == nullptr ? nullptr : value->get_if<int64_t>();
    return number == nullptr ? 0 : *number;
  };
  facts.horizon = integer("horizon");
  facts.action_dim = integer("action_dim");
  facts.action_width = integer("action_width");
  if (const WireValue* const preset = find_key(*entries, "preset")) facts.preset = to_text(*preset, "preset");
  return facts;
}

struct Reply {
  std::vector<int64_t> shape;
  std::vector<double> actions;
  double infer_ms = 0, queue_ms = 0, model_ms = 0;
};

Reply read_reply(const Frame& frame) {
  const WireValue message = decode_message(std::as_bytes(std::span(frame.bytes)));
  const auto* map = message.get_if<WireMap>();
  const WireValue* const actions = map == nullptr ? nullptr : find_key(*map, "actions");
  if (actions == nullptr) throw_bad_input("the reply has no 'actions'.");
  Reply reply{shape_of(*actions, "actions"), to_numbers(*actions, "actions")};
  const auto time = [&](std::string_view group, std::string_view key, double& out) {
    const WireValue* const timing = find_key(*map, group);
    const auto* entries = timing == nullptr ? nullptr : timing->get_if<WireMap>();
    const WireValue* const value = entries == nullptr ? nullptr : find_key(*entries, key);
    if (value != nullptr) out = to_numbers(*value, key).at(0);
  };
  time("server_timing", "infer_ms", reply.infer_ms);
  time("server_timing", "queue_ms", reply.queue_ms);
  time("policy_timing", "infer_ms", reply.model_ms);
  return reply;
}

// Of one client; joined at the end.
struct Counts {
  std::vector<double> total_ms, infer_ms, queue_ms, model_ms, rest_ms, overhead_ms;
  int64_t requests = 0, lost = 0, wrong = 0, refused = 0;
  std::string first_trouble;
  std::vector<double> actions;  // of this client's request

  void trouble(const std::string& text) {
    if (first_trouble.empty()) first_trouble = text;
  }
};

bool same(std::span<const double> a, std::span<const double> b, double tolerance) {
  return std::ranges::equal(a, b, [&](double x, double y) { return x == y || std::abs(x - y) <= tolerance; });
}

class Client {
 public:
  Client(const LoadOptions& options, const Preset& preset, const ServerFacts& facts, int number)
      : options_(options), facts_(facts), checks_(facts.action_dim > 0 && !options.free_noise) {
    std::vector<float> noise;
    if (checks_) {
      noise.resize(static_cast<size_t>(facts.horizon * facts.action_dim));
      fill_noise(1, static_cast<uint64_t>(number), noise);
    }
    request_ = example_request(preset, {.height = options.height,
                                        .width = options.width,
                                        .number = static_cast<uint64_t>(number),
                                        .noise = noise,
                                        .horizon = facts.horizon,
                                        .action_dim = facts.action_dim});
  }

  void run(double end_s) {
    std::optional<WireClient> connection;
    double next_s = now_s();
    int64_t since_connect = 0;
    while (now_s() < end_s) {
      try {
        if (!connection || (options_.reconnect_every > 0 && since_connect == options_.reconnect_every)) {
          connection.emplace(options_.url, ClientOptions{.api_key = options_.api_key, .timeout_s = options_.timeout_s});
          connection->read();
          since_connect = 0;
        }
        ask(*connection);
        ++since_connect;
      } catch (const Error& error) {
        ++counts.lost;
        counts.trouble(error.what());
        connection.reset();
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      if (options_.rate > 0) {
        next_s += 1 / options_.rate;
        std::this_thread::sleep_for(std::chrono::duration<double>(std::min(next_s, end_s) - now_s()));
      }
    }
  }

  Counts counts;

 private:
  void ask(WireClient& connection) {
    const double start = now_s();
    ++counts.requests;
    connection.write(request_);
    const Frame frame = connection.read();
    const double total_ms = (now_s() - start) * 1e3;
    if (frame.is_text) {
      ++counts.refused;
      counts.trouble(frame.bytes);
      throw_bad_input("{}", frame.bytes);
    }
    const Reply reply = read_reply(frame);
    if (counts.actions.empty()) counts.actions = reply.actions;
    const bool shaped =
        reply.shape.size() == 2 &&
        (facts_.horizon == 0 || (reply.shape[0] == facts_.horizon && reply.shape[1] == facts_.action_width));
    const bool finite = std::ranges::all_of(reply.actions, [](double x) { return std::isfinite(x); });
    if (!shaped || !finite || (checks_ && !same(reply.actions, counts.actions, options_.tolerance))) {
      ++counts.wrong;
      counts.trouble("a reply differs from the first one to the same request");
    }
    counts.total_ms.push_back(total_ms);
    counts.infer_ms.push_back(reply.infer_ms);
    counts.queue_ms.push_back(reply.queue_ms);
    counts.model_ms.push_back(reply.model_ms);
    counts.rest_ms.push_back(total_ms - reply.model_ms - reply.queue_ms);
    counts.overhead_ms.push_back(total_ms - reply.model_ms);
  }

  const LoadOptions& options_;
  const ServerFacts& facts_;
  bool checks_;
  std::string request_;
};

struct Spread {
  double p50 = 0, p90 = 0, p99 = 0, max = 0;
};

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto at = [&](double percent) {
    const auto rank = static_cast<size_t>(std::ceil(percent / 100 * static_cast<double>(values.size())));
    return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
  };
  return {at(50), at(90), at(99), values.back()};
}

nlohmann::ordered_json json_of(const Spread& spread) {
  return {{"p50", spread.p50}, {"p90", spread.p90}, {"p99", spread.p99}, {"max", spread.max}};
}

int run_load(const LoadOptions& options) {
  ServerFacts facts;
  {
    WireClient first(options.url, {.api_key = options.api_key, .timeout_s = options.timeout_s});
    facts = read_facts(first.read());
  }
  const std::string preset_name = options.preset.empty() ? facts.preset : options.preset;
  if (preset_name.empty()) throw_bad_use("This server does not tell its preset: give --preset.");
  const PresetChoice choice(preset_name);
  const Preset& preset = choice.preset();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < options.clients; ++i) clients.push_back(std::make_unique<Client>(options, preset, facts, i));
  const double start = now_s();
  std::vector<std::thread> threads;
  for (const auto& client : clients)
    threads.emplace_back([&client, end = start + options.seconds] { client->run(end); });
  for (std::thread& thread : threads) thread.join();
  const double elapsed = now_s() - start;

  Counts all;
  for (const auto& client : clients) {
    const Counts& one = client->counts;
    for (const auto& [from, to] : {std::pair{&one.total_ms, &all.total_ms},
                                   {&one.infer_ms, &all.infer_ms},
                                   {&one.queue_ms, &all.queue_ms},
                                   {&one.model_ms, &all.model_ms},
                                   {&one.rest_ms, &all.rest_ms},
                                   {&one.overhead_ms, &all.overhead_ms}})
      to->insert(to->end(), from->begin(), from->end());
    all.requests += one.requests;
    all.lost += one.lost;
    all.wrong += one.wrong;
    all.refused += one.refused;
    if (!one.first_trouble.empty()) all.trouble(one.first_trouble);
    // Requests differ, so answers that are equal were meant for another client.
    for (const auto& other : clients) {
      const bool equal = other != client && !one.actions.empty() && one.actions == other->counts.actions;
      if (equal && facts.action_dim > 0 && !options.free_noise) {
        ++all.wrong;
        all.trouble("two clients with different requests got the same actions");
      }
    }
  }
  const double rate = static_cast<double>(all.total_ms.size()) / elapsed;
  const Spread total = spread_of(all.total_ms), infer = spread_of(all.infer_ms), queue = spread_of(all.queue_ms),
               model = spread_of(all.model_ms), rest = spread_of(all.rest_ms), overhead = spread_of(all.overhead_ms);
  if (!options.json.empty()) {
    write_json({{"url", options.url},
                {"preset", preset_name},
                {"clients", options.clients},
                {"frame", {options.height, options.width}},
                {"seconds", elapsed},
                {"requests", all.requests},
                {"replies", all.total_ms.size()},
                {"per_second", rate},
                {"lost", all.lost},
                {"wrong", all.wrong},
                {"error_replies", all.refused},
                {"checked", facts.action_dim > 0 && !options.free_noise},
                {"ms",
                 {{"total", json_of(total)},
                  {"infer", json_of(infer)},
                  {"queue", json_of(queue)},
                  {"model", json_of(model)},
                  {"rest", json_of(rest)},
                  {"overhead", json_of(overhead)}}}},
               options.json);
  }
  if (options.json != "-") {
    fmt::print("{} clients, frames of {} x {}, {:.1f} s: {} requests, {:.1f} replies a second\n", options.clients,
               options.height, options.width, elapsed, all.requests, rate);
    fmt::print("lost {}, wrong {}, error replies {}{}\n\n", all.lost, all.wrong, all.refused,
               facts.action_dim > 0 && !options.free_noise ? "" : " (values not checked: the noise is the server's)");
    fmt::print("{:<10} {:>9} {:>9} {:>9} {:>9}\n", "ms", "p50", "p90", "p99", "max");
    for (const auto& [name, s] : {std::pair{"total", total},
                                  {"infer", infer},
                                  {"queue", queue},
                                  {"model", model},
                                  {"rest", rest},
                                  {"overhead", overhead}})
      fmt::print("{:<10} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f}\n", name, s.p50, s.p90, s.p99, s.max);
  }
  if (!all.first_trouble.empty()) std::fprintf(stderr, "tendon: first trouble: %s\n", all.first_trouble.c_str());
  return all.lost == 0 && all.wrong == 0 && all.refused == 0 && !all.total_ms.empty() ? kExitOk : kExitCheckFailed;
}

}  // namespace

Command add_load(CLI::App& app) {
  auto options = std::make_shared<LoadOptions>();
  app.add_option("--url", options->url, "ws://HOST:PORT of the server")->capture_default_str();
  app.add_option("--preset", options->preset, "whose requests to send (default: what the server says it serves)");
  app.add_option("--clients", options->clients, "connections, each with one request at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--seconds", options->seconds, "how long")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rate", options->rate, "requests a second of each client; 0: as fast as it is answered")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--height", options->height, "of every picture, pixels")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--width", options->width, "of every picture, pixels")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--reconnect-every", options->reconnect_every, "connect anew after so many requests; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--tolerance", options->tolerance, "by how much equal requests may be answered differently")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--timeout-s", options->timeout_s, "a reply that takes longer is lost")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--free-noise", options->free_noise, "let the server draw the noise; values are then not checked");
  app.add_option("--api-key", options->api_key, "sent in the handshake");
  app.add_option("--json", options->json, "also write the figures to this file; -: only them, to standard output");
  return [options] { return run_load(*options); };
}

}  // namespace tendon::cli
