// The subcommands: each adds itself to the parser and returns what to run.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace tendon::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitCheckFailed = 1;
inline constexpr int kExitBadUse = 2;
inline constexpr int kExitBadInput = 3;
inline constexpr int kExitDevice = 4;

// Returns an exit code; throws tendon::Error.
using Command = std::function<int()>;

Command add_info(CLI::App& app);
Command add_synth(CLI::App& app);
Command add_run(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_check(CLI::App& app);
Command add_ladder(CLI::App& app);
Command add_tune(CLI::App& app);
Command add_report(CLI::App& app);
Command add_trace(CLI::App& app);
Command add_doctor(CLI::App& app);
Command add_serve(CLI::App& app);
Command add_load(CLI::App& app);

}  // namespace tendon::cli
