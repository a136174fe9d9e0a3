#include "call_trace.h"

#include <algorithm>
#include <limits>
#include <map>

#include "ops/cost.h"
#include "trace/chrome_writer.h"

namespace tendon::cli {
namespace {

using trace::Argument;
using trace::ChromeWriter;
using Kind = DeviceActivity::Kind;

constexpr int kHost = 1, kDevice = 2;  // processes
// Threads; none has its process's number, as viewers put that one first.
constexpr int kPhaseRow = 11, kApiRow = 12;                                 // of the host
constexpr int kStageRow = 11, kOpRow = 12, kCopyRow = 13, kKernelRow = 14;  // of the device; more kernel rows follow

// "denoise.3" of "denoise.3.17", "prefix" of "prefix.4", "denoise" of "denoise.state".
std::string stage_of(const Op& op) {
  const size_t dot = op.scope.find('.');
  const std::string word = op.scope.substr(0, dot);
  if (word != "denoise" || dot == std::string::npos) return word;
  const std::string step = op.scope.substr(dot + 1, op.scope.find('.', dot + 1) - dot - 1);
  const bool number = !step.empty() && step.find_first_not_of("0123456789") == std::string::npos;
  return number ? word + "." + step : word;
}

std::vector<const DeviceActivity*> kernels_of(const std::vector<DeviceActivity>& activities) {
  std::vector<const DeviceActivity*> kernels;
  for (const DeviceActivity& activity : activities) {
    if (activity.kind == Kind::kKernel) kernels.push_back(&activity);
  }
  return kernels;
}

class Rows {
 public:
  Rows(ChromeWriter& writer, const CallTrace& call, const Plan& plan, const DeviceLimits& limits)
      : writer_(writer), call_(call), plan_(plan), limits_(limits) {}

  void write() {
    writer_.facts(call_.facts);
    name_rows();
    for (const Phase& phase : call_.phases) {
      writer_.add({.process = kHost,
                   .thread = kPhaseRow,
                   .category = "host",
                   .name = phase.name,
                   .start_us = phase.start_us,
                   .duration_us = phase.duration_us});
    }
    write_stages();
    write_ops();
    write_activities();
    for (const CounterSample& sample : call_.counters) {
      writer_.counter(kDevice, sample.name, sample.at_us, sample.value);
    }
  }

 private:
  void name_rows() {
    const std::string how = call_.one_by_one ? " (launched one by one: slower than the graph)" : "";
    writer_.name_process(kHost, "host");
    writer_.name_thread(kHost, kPhaseRow, "phases of the call");
    writer_.name_process(kDevice, call_.device);
    writer_.name_thread(kDevice, kStageRow, "stages" + how);
    writer_.name_thread(kDevice, kOpRow, "operations" + how);
    if (call_.activities.empty()) return;
    writer_.name_thread(kHost, kApiRow, "runtime calls");
    writer_.name_thread(kDevice, kCopyRow, "copies");
    writer_.name_thread(kDevice, kKernelRow, "kernels");
  }

  double start(size_t op) const { return call_.ops.start_us[op]; }
  double end(size_t op) const { return call_.ops.start_us[op] + call_.ops.duration_us[op]; }

  // Consecutive operations of one name, by `name_of`; a stage holds its steps.
  template <class NameOf>
  void write_groups(const NameOf& name_of) {
    const std::vector<Op>& ops = plan_.ops();
    for (size_t begin = 0; begin < ops.size();) {
      const std::string name = name_of(ops[begin]);
      size_t after = begin + 1;
      while (after < ops.size() && name_of(ops[after]) == name) ++after;
      if (!name.empty()) {
        Cost total;
        for (size_t i = begin; i < after; ++i) total += cost(ops[i]);
        writer_.add({.process = kDevice,
                     .thread = kStageRow,
                     .category = "stage",
                     .name = name,
                     .start_us = start(begin),
                     .duration_us = end(after - 1) - start(begin),
                     .arguments = {{"operations", static_cast<int64_t>(after - begin)},
                                   {"flops", total.flops},
                                   {"weight_bytes", total.weight_bytes}}});
      }
      begin = after;
    }
  }

  void write_stages() {
    write_groups([](const Op& op) { return op.scope.substr(0, op.scope.find('.')); });
    write_groups([](const Op& op) {
      const std::string stage = stage_of(op);
      return stage.find('.') == std::string::npos ? std::string() : stage;
    });
  }

  // The time that the device's measured limits allow; nothing where nobody measured them.
  double limit_us(const Cost& one) const {
    if (limits_.bf16_flops_per_s <= 0 || limits_.read_bytes_per_s <= 0) return std::numeric_limits<double>::quiet_NaN();
    return 1e6 * std::max(one.flops / limits_.bf16_flops_per_s, one.weight_bytes / limits_.read_bytes_per_s);
  }

  void write_ops() {
    for (size_t i = 0; i < plan_.ops().size(); ++i) {
      const Op& op = plan_.ops()[i];
      const double us = call_.ops.duration_us[i];
      if (us <= 0) continue;
      const Cost one = cost(op);
      const double limit = limit_us(one);
      writer_.add({.process = kDevice,
                   .thread = kOpRow,
                   .category = "op",
                   .name = op_label(op),
                   .start_us = start(i),
                   .duration_us = us,
                   .arguments = {{"op", std::string(op_name(op))},
                                 {"stage", stage_of(op)},
                                 {"shape", describe(op)},
                                 {"kernel", call_.kernel_names[i]},
                                 {"flops", one.flops},
                                 {"read_bytes", one.read_bytes},
                                 {"write_bytes", one.write_bytes},
                                 {"weight_bytes", one.weight_bytes},
                                 {"gflop_per_s", one.flops / us * 1e-3},
                                 {"gb_per_s", one.bytes() / us * 1e-3},
                                 {"limit_us", limit},
                                 {"share_of_limit", limit / us}}});
    }
  }

  // Kernels that overlap go to rows of their own.
  int free_row(const DeviceActivity& kernel) {
    for (size_t row = 0; row < row_ends_.size(); ++row) {
      if (row_ends_[row] <= kernel.start_us) {
        row_ends_[row] = kernel.start_us + kernel.duration_us;
        return kKernelRow + static_cast<int>(row);
      }
    }
    row_ends_.push_back(kernel.start_us + kernel.duration_us);
    const int row = kKernelRow + static_cast<int>(row_ends_.size()) - 1;
    if (row > kKernelRow) writer_.name_thread(kDevice, row, "kernels that overlap");
    return row;
  }

  void write_activities() {
    // The arithmetic of an operation is that of its longest kernel.
    std::map<int64_t, const DeviceActivity*> longest;
    for (const DeviceActivity* kernel : kernels_of(call_.activities)) {
      if (kernel->op < 0) continue;
      const DeviceActivity*& one = longest[kernel->op];
      if (one == nullptr || one->duration_us < kernel->duration_us) one = kernel;
    }
    for (const DeviceActivity& activity : call_.activities) {
      trace::Span span{.process = activity.kind == Kind::kApi ? kHost : kDevice,
                       .category = {},
                       .name = activity.name,
                       .start_us = activity.start_us,
                       .duration_us = activity.duration_us,
                       .arguments = {{"correlation", static_cast<int64_t>(activity.correlation)}}};
      switch (activity.kind) {
        case Kind::kApi:
          span.thread = kApiRow;
          span.category = "cuda_runtime";
          break;
        case Kind::kCopy:
        case Kind::kFill:
          span.thread = kCopyRow;
          span.category = activity.kind == Kind::kCopy ? "gpu_memcpy" : "gpu_memset";
          span.arguments.emplace_back("bytes", activity.bytes);
          break;
        case Kind::kKernel:
          span.thread = free_row(activity);
          span.category = "kernel";
          span.arguments.emplace_back("grid", activity.grid);
          if (activity.op >= 0) add_op(span, activity, longest[activity.op] == &activity);
          break;
      }
      writer_.add(span);
    }
  }

  void add_op(trace::Span& span, const DeviceActivity& kernel, bool is_longest) const {
    const Op& op = plan_.ops()[static_cast<size_t>(kernel.op)];
    span.arguments.emplace_back("op", std::string(op_name(op)));
    span.arguments.emplace_back("stage", stage_of(op));
    span.arguments.emplace_back("label", op_label(op));
    if (!is_longest) return;
    span.arguments.emplace_back("shape", describe(op));
    span.arguments.emplace_back("flops", cost(op).flops);
  }

  ChromeWriter& writer_;
  const CallTrace& call_;
  const Plan& plan_;
  const DeviceLimits& limits_;
  std::vector<double> row_ends_;
};

}  // namespace

bool assign_ops(const std::vector<DeviceActivity>& direct, std::vector<DeviceActivity>& replayed) {
  const std::vector<const DeviceActivity*> known = kernels_of(direct);
  const std::vector<const DeviceActivity*> wanted = kernels_of(replayed);
  const bool same = std::ranges::equal(known, wanted, [](const DeviceActivity* a, const DeviceActivity* b) {
    return a->name == b->name && a->grid == b->grid;
  });
  if (!same) return false;
  size_t next = 0;
  for (DeviceActivity& activity : replayed) {
    if (activity.kind == Kind::kKernel) activity.op = known[next++]->op;
  }
  return true;
}

OpTimes op_times_of(const std::vector<DeviceActivity>& activities, size_t ops) {
  OpTimes times;
  times.start_us.assign(ops, 0);
  times.duration_us.assign(ops, 0);
  std::vector<double> ends(ops, 0);
  std::vector<bool> seen(ops);
  for (const DeviceActivity* kernel : kernels_of(activities)) {
    if (kernel->op < 0 || kernel->op >= static_cast<int64_t>(ops)) continue;
    const auto op = static_cast<size_t>(kernel->op);
    if (!seen[op]) times.start_us[op] = kernel->start_us;
    seen[op] = true;
    ends[op] = std::max(ends[op], kernel->start_us + kernel->duration_us);
  }
  double next_start = std::numeric_limits<double>::infinity();
  double after = 0;  // where operations without kernels stand: at the start of the next one that has some
  for (size_t i = ops; i-- > 0;) {
    if (!seen[i]) {
      times.start_us[i] = after;
      continue;
    }
    times.duration_us[i] = std::max(0.0, std::min(ends[i], next_start) - times.start_us[i]);
    next_start = after = times.start_us[i];
  }
  return times;
}

void write_call_trace(const std::string& path, const CallTrace& call, const Plan& plan, const DeviceLimits& limits) {
  ChromeWriter writer(path);
  Rows(writer, call, plan, limits).write();
  writer.finish();
}

}  // namespace tendon::cli
