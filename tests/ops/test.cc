// op_check test and self-test.
#include <chrono>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>

#include "cases.h"
#include "commands.h"
#include "harness.h"

namespace tendon::op_check {
namespace {

int64_t elements_of(const Case& test) {
  int64_t elements = 0;
  for (const Buffer& buffer : test.buffers) elements += buffer.value.shape.elements();
  return elements;
}

struct Tally {
  int passed = 0, failed = 0;
  void count(const std::string& name, const std::string& failure) {
    if (failure.empty()) {
      ++passed;
    } else {
      ++failed;
      fmt::print("FAILED {}: {}\n", name, failure);
      std::fflush(stdout);
    }
  }
};

// "" when make_backend(name) throws an error of this kind that names what is there.
std::string refusal(const char* name, ErrorKind kind) {
  try {
    make_backend(name);
  } catch (const Error& error) {
    if (error.kind() != kind) return "wrong kind of error";
    return std::string(error.what()).find("cpu") == std::string::npos ? "the error does not list the backends" : "";
  }
  return "no error";
}

std::string check_memory(Backend& backend) {
  if (backend.info().memory_bytes == 0 || backend.info().threads_or_sms <= 0) return "info() is incomplete";
  for (const size_t bytes : {size_t{1}, size_t{300}, size_t{9} << 20}) {
    const DeviceBlock block(backend, bytes);
    if (reinterpret_cast<uintptr_t>(block.data()) % 256 != 0) return "memory is not 256-byte aligned";
    backend.fill_zero(block.data(), bytes);
    std::vector<std::byte> read(bytes, std::byte{1});
    backend.download(read.data(), block.data(), bytes);
    if (read != std::vector<std::byte>(bytes)) return "fill_zero left other bytes";
  }
  try {
    const DeviceBlock block(backend, size_t{1} << 46);
    return "64 TB were given";
  } catch (const Error& error) {
    return error.kind() == ErrorKind::kDevice ? "" : "wrong kind of error for too much memory";
  }
}

// Values that the device makes by a rule have the host's bits, and nothing behind them is written.
std::string check_value_rule(Backend& backend) {
  for (const ValueRule& rule : {ValueRule{0xfedcba9876543210ULL, 0, 0.04}, ValueRule{~uint64_t{0} - 500, 1, 0.2}}) {
    for (const DType dtype : {DType::kBf16, DType::kF32}) {
      for (const int64_t elements : {1, 7, 4096, 300001}) {
        const size_t each = dtype_bytes(dtype);
        const size_t bytes = static_cast<size_t>(elements) * each;
        const DeviceBlock block(backend, bytes + 16);
        backend.fill_zero(block.data(), bytes + 16);
        if (!backend.fill_by_rule(Tensor(dtype, {elements}, block.data()), rule)) return "";  // the host has to
        backend.finish_uploads();
        std::vector<std::byte> got(bytes + 16);
        std::vector<std::byte> want(bytes + 16);
        backend.download(got.data(), block.data(), got.size());
        for (int64_t i = 0; i < elements; ++i) {
          const double r =
              static_cast<double>(splitmix64(rule.seed + static_cast<uint64_t>(i)) >> 40) * kValueRuleUnit - 1;
          const Bf16 value = to_bf16(static_cast<float>(rule.offset + rule.scale * r));
          const float wide = to_float(value);
          const void* const from = dtype == DType::kBf16 ? static_cast<const void*>(&value) : &wide;
          std::memcpy(want.data() + static_cast<size_t>(i) * each, from, each);
        }
        if (got != want) return fmt::format("{} values of {} differ from the host's", elements, dtype_name(dtype));
      }
    }
  }
  return "";
}

}  // namespace

int run_test(const CommandOptions& options) {
  const auto backend = make_backend(options.backend, options.backend_options);
  const auto start = std::chrono::steady_clock::now();
  Tally tally;
  double worst = 0;
  std::string worst_name;
  int64_t chosen = 0;
  for (const Case& test : all_cases()) {
    if (test.slow != options.slow || test.timed_only || test.name.find(options.filter) == std::string::npos) continue;
    if (elements_of(test) > options.max_elements || chosen++ % options.every != 0) continue;
    const auto before = std::chrono::steady_clock::now();
    Outcome outcome;
    try {
      outcome = run_case(*backend, test);
    } catch (const std::exception& error) {
      outcome.failure = error.what();
    }
    tally.count(test.name, outcome.failure);
    if (outcome.worst_share > worst) worst = outcome.worst_share, worst_name = test.name;
    if (options.verbose) {
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
      fmt::print("{:<44} {:>9} compared, worst {:4.2f} of the bound, {:6.3f} s{}\n", test.name, outcome.compared,
                 outcome.worst_share, seconds, outcome.composed ? ", composed" : "");
    }
  }
  if (!options.slow && options.filter.empty() && options.every == 1) {
    // Kernels of a card trust their index buffers: the engine makes these itself, from tokens that it has checked.
    if (backend->uses_host_memory()) {
      int number = 0;
      for (const Fault& fault : all_faults()) {
        const std::string name = fmt::format("{} {}", fault.bad.name, number++);
        tally.count(name, run_fault(*backend, fault.bad, fault.expected).failure);
      }
    }
    tally.count("make_backend.unknown", refusal("abacus", ErrorKind::kBadUse));
    tally.count("make_backend.missing", refusal(backend->name() == "hip" ? "cuda" : "hip", ErrorKind::kDevice));
    tally.count("memory", check_memory(*backend));
    tally.count("value_rule", check_value_rule(*backend));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{}: {} passed, {} failed in {:.1f} s; nearest to its bound: {} ({:.2f})\n", backend->name(), tally.passed,
             tally.failed, seconds, worst_name, worst);
  return tally.failed == 0 && tally.passed > 0 ? 0 : 1;
}

// Plants every kind of fault in the result of one case of each operation: each one must be found.
int run_self_test(const CommandOptions& options) {
  const auto backend = make_backend(options.backend, options.backend_options);
  struct Plan {
    Tamper tamper;
    const char* name;
  };
  const Plan plans[] = {{Tamper::kWrongElement, "wrong element"}, {Tamper::kMissingElement, "missing element"},
                        {Tamper::kGuardBefore, "guard before"},   {Tamper::kGuardAfter, "guard after"},
                        {Tamper::kOutsideView, "outside a view"}, {Tamper::kInput, "changed input"}};
  int found = 0;
  int missed = 0;
  for (const Case& test : all_cases()) {
    const int64_t elements = elements_of(test);
    if (test.slow || test.timed_only || elements > 200000 || elements == 0) continue;
    for (const Plan& plan : plans) {
      const Outcome outcome = run_case(*backend, test, plan.tamper);
      if (outcome.failure == "no place for the planted fault") continue;
      if (outcome.ok()) {
        ++missed;
        fmt::print("NOT FOUND: {} in {}\n", plan.name, test.name);
      } else {
        ++found;
        if (options.verbose) fmt::print("{} in {}: {}\n", plan.name, test.name, outcome.failure);
      }
    }
  }
  fmt::print("self-test: {} planted faults found, {} missed\n", found, missed);
  return missed == 0 && found > 100 ? 0 : 1;
}

}  // namespace tendon::op_check
