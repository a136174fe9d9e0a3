// tendon: runs the π0 and π0.5 robot policies.
#include <cstdio>
#include <new>
#include <utility>
#include <vector>

#include "base/check.h"
#include "commands.h"
#include "version.h"

namespace {

using namespace tendon;
using namespace tendon::cli;

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kBadUse:
      return kExitBadUse;
    case ErrorKind::kBadInput:
      return kExitBadInput;
    default:
      return kExitDevice;
  }
}

int run_command(const Command& command) {
  try {
    return command();
  } catch (const Error& error) {
    std::fprintf(stderr, "tendon: %s\n", error.what());
    return exit_code(error.kind());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "tendon: out of memory. Free some, or use a smaller batch or checkpoint.\n");
    return kExitDevice;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tendon: unexpected: %s. Please report this as a bug.\n", error.what());
    return kExitDevice;
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "tendon runs the π0 and π0.5 robot policies.\n"
      "Exit codes: 0 ok, 1 a check failed, 2 bad use, 3 bad input (file, checkpoint), 4 device."};
  app.require_subcommand(0, 1);  // none is reported below: a mistyped one is then named by the parser
  app.set_version_flag("--version", TENDON_VERSION);
  struct Entry {
    const char *name, *help;
    Command (*add)(CLI::App&);
  };
  constexpr Entry kEntries[] = {
      {"info", "card, build, model, op → kernel table, folds, memory", add_info},
      {"synth", "write a synthetic checkpoint", add_synth},
      {"run", "one observation in, one action chunk out", add_run},
      {"bench", "measure latency", add_bench},
      {"check", "compare with a reference, stage by stage", add_check},
      {"serve", "serve a policy to openpi's clients", add_serve},
      {"load", "put load on a policy server and check its replies", add_load},
      {"ladder", "every optimisation switched on in turn, each measured", add_ladder},
      {"tune", "measure which kernel runs each matrix product fastest on this card", add_tune},
      {"trace", "one call as a trace for Perfetto and tendon report", add_trace},
      {"report", "where the time goes in a trace: of tendon, PyTorch's profiler or rocprof", add_report},
      {"doctor", "what of this machine costs latency, and the remedies", add_doctor},
  };
  std::vector<std::pair<CLI::App*, Command>> commands;
  for (const Entry& entry : kEntries) {
    CLI::App* const sub = app.add_subcommand(entry.name, entry.help);
    commands.emplace_back(sub, entry.add(*sub));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitBadUse;
  }
  for (const auto& [sub, command] : commands) {
    if (sub->parsed()) return run_command(command);
  }
  std::fprintf(stderr, "A subcommand is required\nRun with --help for more information.\n");
  return kExitBadUse;
}
