// tendon serve: openpi's policy server.
#include <malloc.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>

#include "base/check.h"
#include "commands.h"
#include "policy/files/state_file.h"
#include "policy_options.h"
#include "server/policy/chunking_keys.h"
#include "server/policy/policy_model.h"
#include "server/record.h"
#include "server/server.h"
#include "session.h"
#include "version.h"
#include "wire/message.h"

namespace tendon::cli {
namespace {

struct ServeOptions {
  ModelOptions model;
  PolicyArguments policy;
  ChunkingArguments chunking;
  ServerOptions server;
  std::string host, api_key_file, record;
  std::optional<std::string> default_prompt;
  size_t max_batch = 1;
  double max_message_mb = 256;
};

// The key of --api-key-file, else of the environment, else none.
std::string read_key(const std::string& file) {
  std::string key;
  if (!file.empty()) {
    std::ifstream stream(file);
    if (!std::getline(stream, key) || key.empty())
      throw_bad_input("--api-key-file '{}' has no key in its first line.", file);
  } else if (const char* const variable = std::getenv("TENDON_API_KEY")) {
    key = variable;
  }
  return key;
}

// What clients get first: openpi's policy_metadata and, under one key of our own, what this server is.
std::string metadata_of(const Preset& preset, const ModelConfig& config, const ChunkingOffer& offer) {
  WireWriter writer;
  writer.map(preset.reset_pose.empty() ? 1 : 2);
  if (!preset.reset_pose.empty()) {
    writer.text("reset_pose").list(preset.reset_pose.size());
    for (const double value : preset.reset_pose) {
      if (value == std::round(value)) {
        writer.integer(static_cast<int64_t>(value));
      } else {
        writer.number(value);
      }
    }
  }
  writer.text("tendon")
      .map(5 + offer_entries(offer))
      .text("version")
      .text(TENDON_VERSION)
      .text("preset")
      .text(preset.name);
  writer.text("horizon").integer(config.horizon).text("action_dim").integer(config.action_dim);
  writer.text("action_width").integer(preset.robot->action_width);
  write_offer(writer, offer);
  return writer.take();
}

ChunkingOffer offer_of(const Engine& engine, const ChunkingArguments& arguments) {
  if (!engine.options().chunking) return {};
  return {.mode = arguments.mode,
          .schedule = arguments.schedule,
          .max_guidance = static_cast<double>(engine.options().chunking->max_guidance),
          .max_delay = arguments.max_delay};
}

ServerInfo describe(const Session& session, const Preset& preset, const ServeOptions& options) {
  const ModelConfig& config = session.model.config;
  return {.version = TENDON_VERSION,
          .model = std::string(variant_name(config.variant)),
          .preset = std::string(preset.name),
          .backend = std::string(session.backend->name()),
          .device = session.backend->info().name,
          .precision = options.model.precision_text(),
          .horizon = config.horizon,
          .action_width = preset.robot->action_width,
          .max_batch = static_cast<int64_t>(options.max_batch)};
}

// Requests are hundreds of kilobytes, and how many are there at once varies. glibc would serve them from its heaps as
// soon as the first one is freed, and heaps seldom shrink: 64 clients, killed ones and deaf ones left 78 MB resident
// with steps upwards, with blocks of their own 50 MB. Costs a few page faults for pictures that are resized (1 to 5 %
// of a request's CPU time from 480 x 640 up, none at 224 x 224).
void give_memory_back() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 512 << 10);
#endif
}

int run_serve(ServeOptions options) {
  give_memory_back();
  const PresetChoice choice(options.policy.preset);
  const Preset& preset = choice.preset();
  if (options.policy.tokens.empty() && options.policy.tokenizer.empty()) {
    throw_bad_use(
        "Give --tokenizer FILE (paligemma_tokenizer.model) for the clients' prompts, or --tokens IDS to be used in "
        "place of every prompt.");
  }
  const LogSink log = stderr_log();
  options.server.api_key = read_key(options.api_key_file);
  options.server.max_message_bytes = static_cast<size_t>(options.max_message_mb * 1e6);
  if (!options.host.empty()) {
    options.server.host = options.host;
  } else if (options.server.api_key.empty()) {
    log_info(log, "no API key is set: listening on 127.0.0.1 only. --host 0.0.0.0 lets other machines in.");
  } else {
    options.server.host = "0.0.0.0";
  }
  std::optional<CallRecorder> recorder;
  if (!options.record.empty()) recorder.emplace(options.record, options.policy.seed, log);
  options.server.recorder = recorder ? &*recorder : nullptr;
  Server server(options.server, log);  // a port that is taken is known before a model is loaded

  PolicyModelOptions model_options;
  model_options.seed = options.policy.seed;
  model_options.defaults.run_parts = server.run_parts();
  model_options.batch_sizes = batch_sizes_up_to(options.max_batch);
  SessionOptions session_options{.preset = &preset, .serving_lengths = true};
  session_options.chunking = [&](int64_t steps) { return options.chunking.engine(steps); };
  for (const int64_t views : possible_views(preset)) {
    for (const size_t size : model_options.batch_sizes)
      session_options.prepared.push_back({static_cast<int64_t>(size), views});
  }
  session_options.frame_bytes =
      options.policy.frame_bytes(static_cast<int64_t>(options.max_batch) * possible_views(preset).back());
  const Session session = open_session(options.model, session_options);
  options.policy.report_resize(*session.engine, log);
  model_options.defaults.tokens = options.policy.read_tokens(session.model.config);
  if (!options.policy.tokens.empty()) {
    log_warning(log, "--tokens: every request gets these tokens; the clients' prompts are not read");
  }
  model_options.defaults.prompt = options.default_prompt;
  if (!options.default_prompt && !preset.default_prompt.empty())
    model_options.defaults.prompt = std::string(preset.default_prompt);
  PolicyParts parts(options.policy, *session.engine, session.model, preset, options.chunking.rules(), log);
  Metrics metrics(describe(session, preset, options));
  PolicyModel model(parts.policy(), metrics, model_options, log);
  const double start = now_s();
  model.warm_up();
  log_info(log, "warmed up in {:.2f} s", now_s() - start);
  server.run(model, metrics, metadata_of(preset, session.model.config, offer_of(*session.engine, options.chunking)),
             true);
  return kExitOk;
}

}  // namespace

Command add_serve(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  options->model.add_to(app);
  options->policy.add_to(app);
  options->chunking.add_to(app);
  ServerOptions& server = options->server;
  app.add_option("--host", options->host,
                 "address to listen on (default: 127.0.0.1; with an API key 0.0.0.0, all networks)");
  app.add_option("--port", server.port, "port; 0: any free one, named in the log")->capture_default_str();
  app.add_option("--default-prompt", options->default_prompt, "task text for requests without a prompt");
  app.add_option("--api-key-file", options->api_key_file,
                 "file whose first line is the key that clients must send (or the variable TENDON_API_KEY)");
  app.add_option("--resize-threads", server.resize_threads,
                 "of the I/O threads, those that may work on one picture when the host resizes (default: all)")
      ->check(CLI::Range(1, 64));
  app.add_option("--max-batch", options->max_batch, "requests of several clients that may run together")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--max-wait-us", server.max_wait_us, "how long a request waits for others of its batch")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--max-message-mb", options->max_message_mb, "largest message of a client, in 10^6 bytes")
      ->check(CLI::Range(0.01, 4000.0))
      ->capture_default_str();
  app.add_option("--max-clients", server.max_clients, "more are refused with HTTP 503")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--io-threads", server.io_threads,
                 "threads for the network and for preparing requests (default: 2, with 8 cores 3, with 12 cores 4)")
      ->check(CLI::Range(1, 64));
  app.add_option("--drain-s", server.drain_s, "at SIGTERM or SIGINT: longest wait for requests that were received")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--record", options->record, "directory for all requests and replies (tendon run --replay)");
  app.add_flag("--log-requests", server.log_requests, "a line in the log for every request");
  return [options] { return run_serve(*options); };
}

}  // namespace tendon::cli
