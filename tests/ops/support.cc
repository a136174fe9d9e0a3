// op_check support: which backend runs which operation, as a markdown table.
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cases.h"
#include "commands.h"
#include "harness.h"

namespace tendon::op_check {
namespace {

struct Support {
  int cases = 0, supported = 0;
  std::vector<std::string> kernels;  // the distinct ones, in the order of the cases
  std::vector<std::string> parts;    // of its composition
};

void add_once(std::vector<std::string>& list, std::string text) {
  for (const std::string& known : list) {
    if (known == text) return;
  }
  list.push_back(std::move(text));
}

template <size_t... I>
std::vector<std::string> names_of(std::index_sequence<I...>) {
  return {std::variant_alternative_t<I, OpArgs>::kName...};
}

}  // namespace

int run_support(const CommandOptions& options) {
  const auto backend = make_backend(options.backend, options.backend_options);
  std::map<std::string, Support> table;
  for (const Case& test : all_cases()) {
    Support& support = table[std::string(op_name(test.op))];
    ++support.cases;
    const Op planned = as_planned(test);
    if (backend->supports(planned)) {
      ++support.supported;
      add_once(support.kernels, backend->kernel_name(planned));
    } else {
      std::vector<Value> values;
      for (const Buffer& buffer : test.buffers) values.push_back(buffer.value);
      for (const Op& part : operations_for(nullptr, test.op, values))
        add_once(support.parts, std::string(op_name(part)));
    }
  }
  fmt::print("| operation | {} |\n|---|---|\n", backend->name());
  for (const std::string& name : names_of(std::make_index_sequence<std::variant_size_v<OpArgs>>())) {
    const Support& support = table[name];
    if (support.cases == 0) {
      fmt::print("| `{}` | not tested |\n", name);
    } else if (support.supported == support.cases) {
      fmt::print("| `{}` | {} |\n", name, fmt::join(support.kernels, "; "));
    } else if (support.supported == 0) {
      fmt::print("| `{}` | composed: {} |\n", name, fmt::join(support.parts, ", "));
    } else {
      fmt::print("| `{}` | {} (some shapes; else composed: {}) |\n", name, fmt::join(support.kernels, "; "),
                 fmt::join(support.parts, ", "));
    }
  }
  return 0;
}

}  // namespace tendon::op_check
