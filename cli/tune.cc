// tendon tune: measures which kernel runs each matrix product of a model fastest on this card, or finds static scales.
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "backend/gemm/tuner.h"
#include "calibrate.h"
#include "commands.h"
#include "session.h"
#include "shape_backend.h"
#include "version.h"
#include "workload.h"

namespace tendon::cli {
namespace {

struct TuneCommand {
  ModelOptions model;
  std::vector<int64_t> views = {1, 2, 3}, prompt_tokens = {20}, horizons, batches = {1};
  std::string out;
  std::vector<std::string> merge;
  CalibrateOptions calibrate;
  double budget_s = 600;
  bool retune = false, list = false;
};

// Of the plans of every combination.
std::vector<gemm::Desc> descriptions(const TuneCommand& command, const Backend& backend,
                                     const gemm::TuneTarget& target) {
  ModelConfig config = load_config(command.model);
  EngineOptions options = command.model.engine_options(config);
  options.steps = 1;  // every step has the same shapes
  std::vector<gemm::Desc> list;
  const std::vector<int64_t> horizons = command.horizons.empty() ? std::vector{config.horizon} : command.horizons;
  for (const int64_t horizon : horizons) {
    config.horizon = horizon;
    ShapeBackend shapes(backend);
    ZeroMemory memory;
    const Weights weights = zero_weights(config, memory);
    Engine engine(shapes, config, weights, options);
    for (const int64_t batch : command.batches) {
      for (const int64_t views : command.views) {
        for (const int64_t tokens : command.prompt_tokens) {
          const Workload workload(config, {.views = views, .prompt_tokens = tokens, .batch = batch});
          for (const Op& op : engine.prepare(workload.samples()).ops()) {
            const std::optional<gemm::Desc> desc = target.product_of(op);
            if (desc && std::ranges::find(list, *desc) == list.end()) list.push_back(*desc);
          }
        }
      }
    }
  }
  return list;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

// Whole or not at all: an interrupted run leaves the rows it had.
void write_table(const gemm::Table& table, const std::string& path) {
  const std::string unfinished = path + ".part";
  {
    std::ofstream file(unfinished, std::ios::binary);
    file << table.text();
    if (!file.flush()) throw_bad_input("cannot write '{}'. Check the directory and its rights.", unfinished);
  }
  std::filesystem::rename(unfinished, path);
}

void print_finding(size_t done, size_t total, const gemm::Finding& f, double seconds_left) {
  const auto text = [&](const gemm::Measured& m) {
    return m.kernel.empty() ? std::string("-") : fmt::format("{:8.2f} µs {}", m.us, m.kernel);
  };
  fmt::print("[{}/{}] {}\n", done, total, gemm::to_string(f.desc));
  fmt::print("  library default {}\n  library best    {}\n  own best        {}\n", text(f.library_default),
             text(f.library_best), text(f.own_best));
  if (f.chosen.kernel.empty()) {
    fmt::print("  chosen          none: no kernel gave right numbers ({} tried)\n", f.tried);
  } else {
    fmt::print("  chosen          {}, {:.0f} TFLOP/s; {} tried, {} wrong, {:.1f} s, about {:.0f} s left\n",
               f.chosen.kernel, gemm::flops(f.desc) / f.chosen.us * 1e-6, f.tried, f.wrong, f.seconds, seconds_left);
  }
  std::fflush(stdout);
}

int run_tune(const TuneCommand& command) {
  if (!command.calibrate.from.empty()) {
    CalibrateOptions calibrate = command.calibrate;
    calibrate.out = command.out;
    calibrate.workload = {.views = std::ranges::max(command.views), .prompt_tokens = command.prompt_tokens.front()};
    return run_calibrate(command.model, calibrate);
  }
  const std::unique_ptr<Backend> backend = make_backend(command.model.backend, command.model.backend_options());
  gemm::TuneTarget* const target = backend->tune_target();
  if (target == nullptr) {
    throw_bad_use("The {} backend does not choose its products from a table: there is nothing to tune.",
                  backend->name());
  }
  const DeviceInfo device = backend->info();
  const std::string out = command.out.empty() ? gemm::table_file_name(device.name) : command.out;
  gemm::Table table;
  if (std::filesystem::exists(out)) table = gemm::Table::read(out);
  for (const std::string& path : command.merge) {
    const size_t taken = table.merge(gemm::Table::read(path));
    fmt::print("{}: {} rows taken\n", path, taken);
  }
  if (!command.merge.empty()) write_table(table, out);
  const std::vector<gemm::Desc> list = descriptions(command, *backend, *target);
  fmt::print("{} ({}): {} products, {} rows in {}\n", device.name, device.architecture, list.size(),
             table.rows().size(), out);
  if (command.list) {
    for (const gemm::Desc& desc : list) {
      const gemm::Row* const row = table.find_exact(desc);
      fmt::print("{:<56} {}\n", gemm::to_string(desc), row == nullptr ? "-" : row->kernel);
    }
    return kExitOk;
  }
  std::fflush(stdout);
  const double start = now_s();
  gemm::TuneOptions options{
      .retune = command.retune, .budget_s = command.budget_s, .date = today(), .commit = TENDON_COMMIT};
  options.now_s = now_s;
  options.report = [&](size_t done, size_t total, const gemm::Desc&, const gemm::Finding* finding) {
    if (finding == nullptr) return;
    const double each = (now_s() - start) / static_cast<double>(done);
    print_finding(done, total, *finding, each * static_cast<double>(total - done));
    write_table(table, out);
  };
  const size_t left_out = gemm::tune(*target, list, table, options);
  write_table(table, out);
  fmt::print("{} rows in {} after {:.0f} s", table.rows().size(), out, now_s() - start);
  if (left_out > 0) fmt::print("; {} products are left for another run: the time was up", left_out);
  fmt::print("\n");
  return kExitOk;
}

}  // namespace

Command add_tune(CLI::App& app) {
  auto command = std::make_shared<TuneCommand>();
  command->model.add_to(app);
  app.add_option("--views", command->views, "active cameras, one or several numbers")->capture_default_str();
  app.add_option("--prompt-tokens", command->prompt_tokens, "real prompt tokens, one or several")
      ->capture_default_str();
  app.add_option("--horizons", command->horizons, "action rows, one or several (default: the model's)");
  app.add_option("--batch", command->batches, "samples of one call, one or several")->capture_default_str();
  app.add_option("--out", command->out,
                 "table to write; rows that it has are kept (default: CARD.csv). With --calibrate: the file of scales");
  app.add_option("--merge", command->merge,
                 "tables of this card whose rows --out gets first: the later measurement wins, then the faster one");
  app.add_option("--time-budget", command->budget_s, "seconds after which no product is begun")->capture_default_str();
  app.add_flag("--retune", command->retune, "measure also what the table has");
  app.add_flag("--list", command->list, "only show the products");
  app.add_option(
      "--calibrate", command->calibrate.from,
      "find static scales for --scales, on a recording of tendon serve --record (with --preset and what else "
      "tendon run --replay takes) or on made observations (the word workload); into --out, or beside the "
      "checkpoint");
  app.add_option("--observations", command->calibrate.observations,
                 "with --calibrate: how many, at most; spread over the recording")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->calibrate.policy.add_to(app, false);
  return [command] { return run_tune(*command); };
}

}  // namespace tendon::cli
