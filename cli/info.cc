// tendon info: what this build, machine, checkpoint and plan are.
#include <map>

#include <fmt/format.h>

#include "buckets.h"
#include "commands.h"
#include "ops/cost.h"
#include "session.h"
#include "version.h"
#include "workload.h"

namespace tendon::cli {
namespace {

struct InfoOptions {
  ModelOptions model;
  WorkloadOptions workload;
  BucketOptions buckets;
  bool json = false;
};

nlohmann::ordered_json folds_json(const Folds& folds) {
  nlohmann::ordered_json list = nlohmann::json::array();
  for (const FoldInfo& fold : kFolds) {
    list.push_back({{"name", fold.name}, {"on", folds.*fold.field}, {"meaning", fold.meaning}});
  }
  return list;
}

struct KernelRow {
  int64_t count = 0;
  Cost cost;
};

void print_device(const Backend& backend, const DeviceInfo& device) {
  fmt::print("device     {}: {} ({}), {} {}, {:.1f} GB, {:.1f} GB free\n", backend.name(), device.name,
             device.architecture, device.threads_or_sms, backend.uses_host_memory() ? "threads" : "multiprocessors",
             static_cast<double>(device.memory_bytes) * 1e-9, static_cast<double>(device.free_bytes) * 1e-9);
  const auto line = [](const char* what, const std::string& text) {
    if (!text.empty()) fmt::print("{:<10} {}\n", what, text);
  };
  line("driver", device.driver);
  line("runtime", device.runtime);
  line("library", device.library);
  line("GEMM table", device.gemm_table);
}

// Without a checkpoint: the build and the machine.
int describe_build(const InfoOptions& options) {
  const std::unique_ptr<Backend> backend = make_backend(options.model.backend, options.model.backend_options());
  nlohmann::ordered_json json = {
      {"version", TENDON_VERSION}, {"commit", TENDON_COMMIT}, {"device", describe_device(*backend)}};
  for (const Preset& preset : all_presets()) json["presets"].push_back(preset.name);
  if (options.json) {
    write_json(json, {});
    return kExitOk;
  }
  const DeviceInfo device = backend->info();
  fmt::print("tendon {} ({})\n", TENDON_VERSION, TENDON_COMMIT);
  print_device(*backend, device);
  fmt::print("presets    ");
  for (const Preset& preset : all_presets()) fmt::print("{} ", preset.name);
  fmt::print("\n");
  return kExitOk;
}

int run_info(const InfoOptions& options) {
  if (options.model.checkpoint.empty()) return describe_build(options);
  Session session = open_session(options.model, {.prepared = options.buckets.parse()});
  Workload workload(session.model.config, options.workload);
  const Plan& plan = session.engine->prepare(workload.samples());

  std::map<std::pair<std::string, std::string>, KernelRow> kernels;
  Cost total;
  for (const Op& op : plan.ops()) {
    KernelRow& row = kernels[{std::string(op_name(op)), session.backend->kernel_name(op)}];
    ++row.count;
    const Cost c = cost(op);
    row.cost += c;
    total += c;
  }
  const WeightStore& store = session.engine->store();
  nlohmann::ordered_json json = {{"version", TENDON_VERSION},
                                 {"device", describe_device(*session.backend)},
                                 {"checkpoint", options.model.checkpoint},
                                 {"model", describe_model(session.model.config)},
                                 {"precision", options.model.precision_text()},
                                 {"rope_freq", options.model.rope},
                                 {"folds", folds_json(session.engine->options().folds)},
                                 {"bucket",
                                  {{"batch", session.engine->bucket().batch},
                                   {"images", session.engine->bucket().images},
                                   {"prefix_rows", session.engine->bucket().prefix_rows}}},
                                 {"buckets", describe_buckets(*session.engine)},
                                 {"memory",
                                  {{"weights_in_place_bytes", store.in_place_bytes()},
                                   {"weights_copied_bytes", store.copied_bytes()},
                                   {"arena_bytes", plan.arena_bytes()},
                                   {"workspace_bytes", plan.workspace_bytes()}}},
                                 {"operations", plan.ops().size()},
                                 {"tflop", total.flops * 1e-12},
                                 {"kernels", nlohmann::json::array()}};
  for (const auto& [key, row] : kernels) {
    json["kernels"].push_back({{"op", key.first},
                               {"kernel", key.second},
                               {"count", row.count},
                               {"gflop", row.cost.flops * 1e-9},
                               {"gb", row.cost.bytes() * 1e-9}});
  }
  if (session.model.checkpoint != nullptr) {
    json["stored_dtypes"] = session.model.checkpoint->dtype_summary();
    for (const IgnoredTensor& ignored : session.model.checkpoint->ignored()) {
      json["ignored"].push_back({{"name", ignored.stored_name}, {"reason", ignored.reason}});
    }
  }
  if (options.json) {
    write_json(json, {});
    return kExitOk;
  }
  const ModelConfig& c = session.model.config;
  fmt::print("tendon {}\n", TENDON_VERSION);
  const DeviceInfo device = session.backend->info();
  print_device(*session.backend, device);
  fmt::print("model      {} from {}, compute {}, RoPE frequencies {}\n", variant_name(c.variant),
             options.model.checkpoint, options.model.precision_text(), options.model.rope);
  fmt::print("           vision {}×{} ({} heads, {} px), prefix {}×{}, expert {}×{}, {} heads × {}, vocabulary {}\n",
             c.vision.depth, c.vision.width, c.vision.heads, c.vision.image_size, c.depth, c.prefix.width, c.depth,
             c.expert.width, c.heads, c.head_dim, c.vocab);
  fmt::print("           horizon {}, {} action dims, prompt budget {} tokens, {} steps\n", c.horizon, c.action_dim,
             c.max_token_len, session.engine->schedule().times.size());
  if (json.contains("stored_dtypes")) fmt::print("stored     {}\n", json["stored_dtypes"].get<std::string>());
  fmt::print(
      "memory     weights {:.2f} GB in place + {:.2f} GB copied or tabulated, arena {:.0f} MB, workspace {:.0f} MB\n",
      static_cast<double>(store.in_place_bytes()) * 1e-9, static_cast<double>(store.copied_bytes()) * 1e-9,
      static_cast<double>(plan.arena_bytes()) * 1e-6, static_cast<double>(plan.workspace_bytes()) * 1e-6);
  fmt::print("plan       batch {}, {} pictures, {} prefix rows: {} operations, {:.3f} TFLOP\n",
             session.engine->bucket().batch, session.engine->bucket().images, session.engine->bucket().prefix_rows,
             plan.ops().size(), total.flops * 1e-12);
  for (const Bucket& bucket : session.engine->prepared_buckets()) fmt::print("bucket     {}\n", to_string(bucket, c));
  fmt::print("\n{:<16} {:<44} {:>6} {:>10} {:>8}\n", "operation", "kernel", "count", "GFLOP", "GB");
  for (const auto& [key, row] : kernels)
    fmt::print("{:<16} {:<44} {:>6} {:>10.1f} {:>8.3f}\n", key.first, key.second, row.count, row.cost.flops * 1e-9,
               row.cost.bytes() * 1e-9);
  fmt::print("\nfolds (switch off with --fold-off NAME)\n");
  for (const FoldInfo& fold : kFolds)
    fmt::print("  {:<26} {:<4} {}\n", fold.name, session.engine->options().folds.*fold.field ? "on" : "off",
               fold.meaning);
  return kExitOk;
}

}  // namespace

Command add_info(CLI::App& app) {
  auto options = std::make_shared<InfoOptions>();
  options->model.add_to(app, false);
  options->workload.add_to(app);
  options->buckets.add_to(app);
  app.add_flag("--json", options->json, "machine-readable output");
  return [options] { return run_info(*options); };
}

}  // namespace tendon::cli
