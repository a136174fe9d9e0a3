// op_check bench: the time of every operation at the shapes of the real models, against the vendor library's own
// product.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <deque>
#include <fstream>

#include <fmt/format.h>

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

// Weights that come from memory are read in copies that together exceed any cache.
int copies_of(const Case& test) {
  if (!test.streamed) return 1;
  const auto& linear = std::get<Linear>(test.op.args);
  return static_cast<int>(std::clamp<size_t>((size_t{384} << 20) / std::max<size_t>(linear.w.bytes(), 1), 1, 200));
}

}  // namespace

int run_bench(const CommandOptions& options) {
  const auto backend = make_backend(options.backend, options.backend_options);
  const DeviceInfo info = backend->info();
  fmt::print("{} ({}, {} threads or multiprocessors)\n", info.name, info.architecture, info.threads_or_sms);
  fmt::print("{:<36} {:>10} {:>10} {:>8} {:>9} {:>18}\n", "operation", "best µs", "median µs", "GB/s", "GFLOP/s",
             "× library f32 bf16");
  std::string json = fmt::format(
      "{{\"device\": \"{}\", \"architecture\": \"{}\", \"threads_or_sms\": {}, \"clock\": \"{}\", \"rows\": [",
      info.name, info.architecture, info.threads_or_sms, options.cpu_time ? "cpu time / threads" : "wall");
  const char* separator = "";
  for (const Case& test : all_cases()) {
    if (!test.bench || test.name.find(options.filter) == std::string::npos) continue;
    const int copies = copies_of(test);
    std::vector<Value> values;
    std::deque<std::vector<std::byte>> bytes;
    std::vector<const std::vector<std::byte>*> contents;
    for (size_t i = 0; i < test.buffers.size(); ++i) {
      values.push_back(test.buffers[i].value);
      contents.push_back(&bytes.emplace_back(make_bytes(test.buffers[i], i + 1)));
    }
    std::vector<Op> ops = operations_for(backend.get(), test.op, values);
    const size_t parts = ops.size();
    if (parts == 1) {
      for (int copy = 1; copy < copies; ++copy) {
        Op op = test.op;
        Linear& linear = std::get<Linear>(op.args);
        values.push_back(values[static_cast<size_t>(linear.w.value)]);
        contents.push_back(contents[static_cast<size_t>(linear.w.value)]);
        linear.w.value = static_cast<int32_t>(values.size()) - 1;
        ops.push_back(op);
      }
    }
    const auto repeats = static_cast<double>(ops.size()) / static_cast<double>(parts);
    BoundOps bound(*backend, std::move(ops), values, contents);
    Status status;
    std::vector<std::function<void()>> calls = {[&] { status = bound.executable().run(nullptr); }};
    const bool compares = std::holds_alternative<Linear>(test.op.args) && backend->uses_host_memory();
    if (compares) {
      const auto& a = std::get<Linear>(test.op.args);
      for (const DType dtype : {DType::kF32, DType::kBf16}) {
        calls.push_back([product = library_matmul(a.x.rows(), a.w.rows(), a.w.cols(), dtype, copies), copies] {
          for (int i = 0; i < copies; ++i) product();
        });
      }
    }
    std::vector<Timing> timings = time_in_turn(calls, options.seconds, options.cpu_time ? info.threads_or_sms : 0);
    if (!status.is_ok()) throw Error(ErrorKind::kInternal, status.message());
    timings[0].best /= repeats, timings[0].median /= repeats;
    for (size_t i = 1; i < timings.size(); ++i) timings[i].best /= copies, timings[i].median /= copies;

    const Cost work = cost(test.op);
    const double seconds = timings[0].median;
    std::string library;
    std::string library_json;
    if (compares) {
      library = fmt::format("{:11.2f} {:6.2f}", timings[1].median / seconds, timings[2].median / seconds);
      library_json = fmt::format(", \"library_f32_us\": {:.3f}, \"library_bf16_us\": {:.3f}", timings[1].median * 1e6,
                                 timings[2].median * 1e6);
    }
    fmt::print("{:<36} {:>10.1f} {:>10.1f} {:>8.1f} {:>9} {:>18}\n", test.name, timings[0].best * 1e6, seconds * 1e6,
               work.bytes() / seconds / 1e9, work.flops > 0 ? fmt::format("{:.1f}", work.flops / seconds / 1e9) : "",
               library);
    std::fflush(stdout);
    json += fmt::format(
        "{}\n  {{\"name\": \"{}\", \"kernel\": \"{}\", \"best_us\": {:.3f}, \"median_us\": {:.3f}, "
        "\"bytes\": {:.0f}, \"flops\": {:.0f}{}}}",
        separator, test.name, parts == 1 ? backend->kernel_name(test.op) : std::string("composed"),
        timings[0].best * 1e6, seconds * 1e6, work.bytes(), work.flops, library_json);
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
