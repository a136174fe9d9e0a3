// op_check: tests and times the operations of a backend, one by one.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include <fmt/format.h>

#include "base/check.h"
#include "commands.h"

namespace {

constexpr const char* kHelp = R"(op_check test      [--slow] [--verbose]   every operation against the oracle
                   [--max-elements N]     only cases whose buffers hold so many in all
                   [--every N]            of those, one in N: a sample
op_check self-test [--verbose]            plants faults in results: all must be found
op_check bench     [--seconds S] [--json FILE|-]   time of the real shapes, × the vendor library
                   [--cpu-time]           on a busy machine: CPU time / threads (set OMP_WAIT_POLICY=passive)
op_check support                          which operation has which kernel (markdown)
  --backend NAME   cpu (default)          --threads N   CPU threads, 0 = all
  --device N       GPU index              --filter TEXT only cases whose name holds TEXT
  --portable       a card's portable kernels, no library      --gemm-table FILE   in place of the built-in one; none
  --without WORD   leave out a card's kernels whose name holds WORD (may be repeated)
)";

int run(int argc, char** argv) {
  using namespace tendon::op_check;
  CommandOptions options;
  std::string_view command;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const auto value = [&]() -> const char* {
      if (i + 1 >= argc) tendon::throw_bad_use("{} needs a value", word);
      return argv[++i];
    };
    if (word == "--help" || word == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (word == "--backend") {
      options.backend = value();
    } else if (word == "--threads") {
      options.backend_options.threads = std::atoi(value());
    } else if (word == "--device") {
      options.backend_options.device = std::atoi(value());
    } else if (word == "--portable") {
      options.backend_options.portable_kernels = true;
    } else if (word == "--gemm-table") {
      options.backend_options.gemm_table = value();
    } else if (word == "--without") {
      options.backend_options.without.emplace_back(value());
    } else if (word == "--filter") {
      options.filter = value();
    } else if (word == "--seconds") {
      options.seconds = std::atof(value());
    } else if (word == "--max-elements") {
      options.max_elements = std::atoll(value());
    } else if (word == "--every") {
      options.every = std::atoll(value());
      if (options.every < 1) tendon::throw_bad_use("--every: {} is no number from 1", options.every);
    } else if (word == "--json") {
      options.json_path = value();
    } else if (word == "--cpu-time") {
      options.cpu_time = true;
    } else if (word == "--slow") {
      options.slow = true;
    } else if (word == "--verbose") {
      options.verbose = true;
    } else if (command.empty() && !word.starts_with("-")) {
      command = word;
    } else {
      tendon::throw_bad_use("unknown argument '{}'", word);
    }
  }
  if (command == "test") return run_test(options);
  if (command == "self-test") return run_self_test(options);
  if (command == "bench") return run_bench(options);
  if (command == "support") return run_support(options);
  std::fputs(kHelp, stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const tendon::Error& error) {
    fmt::print(stderr, "op_check: {}\n", error.what());
    return error.kind() == tendon::ErrorKind::kBadUse ? 2 : 4;
  } catch (const std::exception& error) {
    fmt::print(stderr, "op_check: {}\n", error.what());
    return 4;
  }
}
