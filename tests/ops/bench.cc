// op_check bench: the time of every operation at the shapes of the real models, against the vendor library's own
// product.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <deque>
#include <fstream>
#include <optional>

#include <fmt/format.h>

#include "backend/gemm/tuner.h"
#include "cases.h"
#include "commands.h"
#include "harness.h"
#include "library_matmul.h"
#include "ops/cost.h"

namespace tendon::op_check {
namespace {

using Clock = std::chrono::steady_clock;

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// With cpu_threads: the CPU time of the whole process over the threads, what the call would take on idle cores.
double seconds_of(const std::function<void()>& call, int cpu_threads) {
  const Clock::time_point start = Clock::now();
  const double cpu_start = cpu_seconds();
  call();
  if (cpu_threads > 0) return (cpu_seconds() - cpu_start) / cpu_threads;
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Timing {
  double best = 1e30, median = 0;
};

// Times several calls in turn, so that a busy machine slows all of them alike.
std::vector<Timing> time_in_turn(const std::vector<std::function<void()>>& calls, double seconds, int cpu_threads) {
  std::vector<std::vector<double>> samples(calls.size());
  for (const auto& call : calls) call();  // warm up
  const Clock::time_point start = Clock::now();
  do {
    for (size_t i = 0; i < calls.size(); ++i) samples[i].push_back(seconds_of(calls[i], cpu_threads));
  } while (std::chrono::duration<double>(Clock::now() - start).count() < seconds * static_cast<double>(calls.size()) ||
           samples[0].size() < 3);
  std::vector<Timing> timings;
  for (std::vector<double>& list : samples) {
    std::sort(list.begin(), list.end());
    timings.push_back({list.front(), list[list.size() / 2]});
  }
  return timings;
}

// How often a case is run at once: with weights that come from memory, in copies that together exceed any cache; on a
// card, often enough that starting the graph does not count.
int copies_of(const Case& test, bool on_card) {
  constexpr int kRunsOnCard = 20;
  const auto* const linear = std::get_if<Linear>(&test.op.args);
  if (linear == nullptr) return on_card ? kRunsOnCard : 1;
  if (!on_card && !test.streamed) return 1;
  return static_cast<int>(
      std::clamp<size_t>((size_t{384} << 20) / std::max<size_t>(linear->w.bytes(), 1), on_card ? kRunsOnCard : 1, 200));
}

// A case on one backend, `runs` times in an executable; `parts` operations each.
struct Prepared {
  std::unique_ptr<BoundOps> ops;
  size_t parts = 0;
  int runs = 1;
};

Prepared prepare(Backend& backend, const Case& test, std::vector<Value> values,
                 std::vector<const std::vector<std::byte>*> contents) {
  Prepared prepared;
  std::vector<Op> ops = operations_for(&backend, test.op, values);
  prepared.parts = ops.size();
  if (prepared.parts == 1) {
    prepared.runs = copies_of(test, !backend.uses_host_memory());
    for (int copy = 1; copy < prepared.runs; ++copy) {
      Op op = test.op;
      if (auto* const linear = std::get_if<Linear>(&op.args)) {
        values.push_back(values[static_cast<size_t>(linear->w.value)]);
        contents.push_back(contents[static_cast<size_t>(linear->w.value)]);
        linear->w.value = static_cast<int32_t>(values.size()) - 1;
      }
      ops.push_back(op);
    }
  }
  prepared.ops = std::make_unique<BoundOps>(backend, std::move(ops), values, contents);
  return prepared;
}

// The longer of the operation's bytes at the memory's rate and its arithmetic at the best bf16 product's, both as
// measured on this kind of card; nothing where nobody measured. Activations that stay in a cache can be faster.
std::optional<double> limit_seconds(const Cost& work, const DeviceLimits& limits) {
  if (limits.bf16_flops_per_s <= 0 || limits.read_bytes_per_s <= 0) return {};
  return std::max(work.flops / limits.bf16_flops_per_s, work.bytes() / limits.read_bytes_per_s);
}

}  // namespace

int run_bench(const CommandOptions& options) {
  const auto backend = make_backend(options.backend, options.backend_options);
  const DeviceInfo info = backend->info();
  fmt::print("{} ({}, {} threads or multiprocessors)\n", info.name, info.architecture, info.threads_or_sms);
  // Where a card has other kernels than the portable ones, those are timed beside the chosen ones.
  std::unique_ptr<Backend> portable_backend;
  if (backend->tune_target() != nullptr && !options.backend_options.portable_kernels) {
    BackendOptions portable = options.backend_options;
    portable.portable_kernels = true;
    portable_backend = make_backend(options.backend, portable);
  }
  fmt::print("{:<36} {:>10} {:>10} {:>8} {:>9} {:>8} {:>18}\n", "operation", "best µs", "median µs", "GB/s", "GFLOP/s",
             "of limit", portable_backend != nullptr ? "portable ÷ chosen" : "× library f32 bf16");
  std::string json = fmt::format(
      "{{\"device\": \"{}\", \"architecture\": \"{}\", \"threads_or_sms\": {}, \"clock\": \"{}\", \"rows\": [",
      info.name, info.architecture, info.threads_or_sms, options.cpu_time ? "cpu time / threads" : "wall");
  const char* separator = "";
  for (const Case& test : all_cases()) {
    if (!test.bench || test.name.find(options.filter) == std::string::npos) continue;
    const Op planned = as_planned(test);
    if (test.timed_only && !backend->supports(planned)) {
      fmt::print("{:<36} left out: composed here\n", test.name);
      continue;
    }
    std::vector<Value> values;
    std::deque<std::vector<std::byte>> bytes;
    std::vector<const std::vector<std::byte>*> contents;
    for (size_t i = 0; i < test.buffers.size(); ++i) {
      values.push_back(test.buffers[i].value);
      contents.push_back(&bytes.emplace_back(make_bytes(test.buffers[i], i + 1)));
    }
    Status status;
    std::vector<std::function<void()>> calls;
    std::vector<int> runs;
    const auto add = [&](const Prepared& prepared) {
      calls.push_back([&] {
        if (Status s = prepared.ops->executable().run(nullptr); !s.is_ok()) status = s;
      });
      runs.push_back(prepared.runs);
    };
    const Prepared own = prepare(*backend, test, values, contents);
    const size_t parts = own.parts;
    add(own);
    const bool compares = std::holds_alternative<Linear>(test.op.args) && backend->uses_host_memory();
    if (compares) {
      const auto& a = std::get<Linear>(test.op.args);
      for (const DType dtype : {DType::kF32, DType::kBf16}) {
        calls.push_back([product = library_matmul(a.x.rows(), a.w.rows(), a.w.cols(), dtype, own.runs), &own] {
          for (int i = 0; i < own.runs; ++i) product();
        });
        runs.push_back(own.runs);
      }
    }
    Prepared portable;
    if (portable_backend != nullptr && parts == 1 &&
        (backend->tune_target()->product_of(test.op) ||
         (portable_backend->supports(planned) &&
          backend->kernel_name(planned) != portable_backend->kernel_name(planned)))) {
      portable = prepare(*portable_backend, test, values, contents);
      add(portable);
    }
    std::vector<Timing> timings = time_in_turn(calls, options.seconds, options.cpu_time ? info.threads_or_sms : 0);
    if (!status.is_ok()) throw Error(ErrorKind::kInternal, status.message());
    for (size_t i = 0; i < timings.size(); ++i) timings[i].best /= runs[i], timings[i].median /= runs[i];

    const Cost work = cost(test.op);
    const double seconds = timings[0].median;
    std::string library;
    std::string library_json;
    if (compares) {
      library = fmt::format("{:11.2f} {:6.2f}", timings[1].median / seconds, timings[2].median / seconds);
      library_json = fmt::format(", \"library_f32_us\": {:.3f}, \"library_bf16_us\": {:.3f}", timings[1].median * 1e6,
                                 timings[2].median * 1e6);
    }
    if (portable.ops != nullptr) {
      library = fmt::format("{:18.2f}", timings.back().median / seconds);
      library_json = fmt::format(", \"portable_us\": {:.3f}", timings.back().median * 1e6);
    }
    const std::optional<double> limit = limit_seconds(work, info.limits);
    fmt::print("{:<36} {:>10.1f} {:>10.1f} {:>8.1f} {:>9} {:>8} {:>18}\n", test.name, timings[0].best * 1e6,
               seconds * 1e6, work.bytes() / seconds / 1e9,
               work.flops > 0 ? fmt::format("{:.1f}", work.flops / seconds / 1e9) : "",
               limit ? fmt::format("{:.0f}%", 100 * *limit / seconds) : "", library);
    std::fflush(stdout);
    json += fmt::format(
        "{}\n  {{\"name\": \"{}\", \"kernel\": \"{}\", \"best_us\": {:.3f}, \"median_us\": {:.3f}, "
        "\"bytes\": {:.0f}, \"flops\": {:.0f}, \"limit_us\": {}, \"share_of_limit\": {}{}}}",
        separator, test.name, parts == 1 ? backend->kernel_name(planned) : std::string("composed"),
        timings[0].best * 1e6, seconds * 1e6, work.bytes(), work.flops,
        limit ? fmt::format("{:.3f}", *limit * 1e6) : "null", limit ? fmt::format("{:.3f}", *limit / seconds) : "null",
        library_json);
    separator = ",";
  }
  json += "\n]}\n";
  if (options.json_path == "-") {
    fmt::print("{}", json);
  } else if (!options.json_path.empty()) {
    std::ofstream file(options.json_path);
    file << json;
    if (!file) throw_bad_use("cannot write {}", options.json_path);
  }
  return 0;
}

}  // namespace tendon::op_check
