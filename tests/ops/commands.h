// The subcommands of op_check.
#pragma once

#include <cstdint>
#include <string>

#include "backend/registry.h"

namespace tendon::op_check {

struct CommandOptions {
  std::string backend = "cpu";
  BackendOptions backend_options;
  std::string filter;                // part of a case's name
  std::string json_path;             // bench: also write the rows there
  int64_t max_elements = INT64_MAX;  // test: leave out cases whose buffers hold more
  int64_t every = 1;                 // test: of the cases that are left, the first and each one so many further on
  double seconds = 0.25;             // bench: time for each shape
  bool cpu_time = false;             // bench: CPU time over the threads instead of wall time
  bool slow = false;                 // test: the slow cases instead of the others
  bool verbose = false;
};

int run_test(const CommandOptions& options);
int run_self_test(const CommandOptions& options);
int run_bench(const CommandOptions& options);
int run_support(const CommandOptions& options);

}  // namespace tendon::op_check
