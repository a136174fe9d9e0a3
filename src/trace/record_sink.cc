#include "trace/record_sink.h"

#include <algorithm>
#include <cctype>

#include "base/check.h"

namespace tendon::trace {
namespace {

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

Kind kind_of_category(const std::string& category) {
  const std::string text = lower(category);
  if (text == "kernel") return Kind::kKernel;
  if (text == "gpu_memcpy" || text == "memcpy" || text == "copy") return Kind::kCopy;
  if (text == "gpu_memset" || text == "memset") return Kind::kFill;
  if (text.ends_with("_runtime") || text.ends_with("_driver") || text == "runtime" || text == "host") return Kind::kApi;
  if (text == "cpu_op" || text == "operator" || text == "op") return Kind::kOperator;
  if (text.ends_with("user_annotation") || text == "stage") return Kind::kRange;
  return Kind::kOther;
}

// rocprof gives no categories: processes are named after what they show.
Kind kind_of_process(const std::string& process) {
  const std::string text = lower(process);
  if (text.find("gpu") != std::string::npos) return Kind::kKernel;
  if (text.find("copy") != std::string::npos) return Kind::kCopy;
  if (text.find("api") != std::string::npos) return Kind::kApi;
  if (text.find("marker") != std::string::npos) return Kind::kRange;
  return Kind::kOther;
}

}  // namespace

void RecordSink::set(Record& record, Section section, Field field, bool inner, const Scalar& value, uint64_t position) {
  const auto time = [&](std::optional<int64_t> ns, const char* what) {
    if (!ns) {
      throw_bad_input(
          "'{}': near byte {}: \"{}\" is no number that can be a time: '{}'.", trace_.path, position, what,
          value.type == Scalar::Type::kInteger ? std::to_string(value.integer) : std::string(value.text.substr(0, 40)));
    }
    return ns;
  };
  const auto text = [&] { return trace_.strings.add(value.text); };
  // A process or thread: a number, also as text, or a name.
  const auto id = [&] {
    const std::optional<int64_t> plain = value.as_integer();
    return plain && *plain >= 0 ? *plain : -1 - static_cast<int64_t>(text());
  };
  const auto number = [&](int64_t otherwise) { return value.as_integer().value_or(otherwise); };
  switch (field) {
    case Field::kName:
      (inner ? record.argument_name : record.name) = text();
      break;
    case Field::kFormattedName:
      record.argument_name = text();
      break;
    case Field::kProductName:
      record.name = text();
      break;
    case Field::kPhase:
      if (!inner && !value.text.empty()) record.phase = value.text[0];
      break;
    case Field::kCategory:
      if (!inner) record.category = text();
      break;
    case Field::kTime:
      if (!inner) record.start_ns = time(value.ns_from_us(), "ts");
      break;
    case Field::kDuration:
      if (!inner) record.duration_ns = time(value.ns_from_us(), "dur");
      break;
    case Field::kBeginNs:
      record.start_ns = time(value.ns(), "start");
      break;
    case Field::kEndNs:
      record.end_ns = time(value.ns(), "end");
      rocprof_ = rocprof_ || section == Section::kEvents;
      break;
    case Field::kProcess:
      if (!inner) record.process = id();
      break;
    case Field::kThread:
      if (!inner) record.thread = id();
      break;
    case Field::kExternal:
      record.external = number(-1);
      break;
    case Field::kCorrelation:
      record.correlation = number(-1);
      break;
    case Field::kBytes:
      record.bytes = std::max<int64_t>(0, number(0));
      break;
    case Field::kShape:
      record.shape = text();
      break;
    case Field::kOp:
      record.op = text();
      break;
    case Field::kStage:
      record.stage = text();
      break;
    case Field::kFlops:
      record.flops = std::max(0.0, value.as_real().value_or(0));
      break;
    case Field::kKernelId:
      record.kernel_id = number(-1);
      break;
    case Field::kOperation:
      record.operation = number(-1);
      break;
    case Field::kKind:
      record.kind = number(-1);
      break;
    case Field::kType:
      record.type = number(-1);
      break;
    case Field::kGrid:
      record.grid = text();
      break;
    case Field::kOperations:  // of rocprofv3: one text of the list
      if (section == Section::kKinds) operations_of_kind_.emplace_back(value.text);
      break;
    case Field::kUnknown:
    case Field::kArgs:
    case Field::kDims:
    case Field::kTypes:
      break;
  }
}

void RecordSink::set_list(Record& record, Field field, const std::string& list) {
  const uint32_t text = trace_.strings.add(list);
  if (field == Field::kDims) record.shape = text;
  if (field == Field::kTypes) record.types = text;
  if (field == Field::kGrid) record.grid = text;
}

void RecordSink::add(Section section, const Record& record, uint64_t /*position*/) {
  switch (section) {
    case Section::kEvents:
      if (record.phase == 'M') {
        add_metadata(record);
      } else if (record.phase == 'X') {
        add_event(record);
      } else if (record.phase == 'B' || record.phase == 'E') {
        ++begin_end_;
      }
      break;
    case Section::kDevices:
      if (record.name != 0) trace_.devices.push_back(trace_.strings[record.name]);
      break;
    case Section::kAgents:
      if (record.type == 2 && record.name != 0) trace_.devices.push_back(trace_.strings[record.name]);
      break;
    case Section::kSymbols:
      if (record.kernel_id >= 0) {
        kernel_names_[record.kernel_id] =
            trace_.strings[record.argument_name != 0 ? record.argument_name : record.name];
      }
      break;
    case Section::kDispatches:
    case Section::kCopies:
    case Section::kApi:
      add_dispatch(section, record);
      break;
    case Section::kKinds:
      operations_.push_back(std::exchange(operations_of_kind_, {}));
      break;
    case Section::kNone:
    case Section::kFacts:
      break;
  }
}

void RecordSink::add_fact(const std::string& key, const Scalar& value) {
  std::string text(value.text);
  if (value.type == Scalar::Type::kInteger) text = std::to_string(value.integer);
  trace_.facts.emplace_back(key, text);
}

std::string RecordSink::id_text(int64_t id) const {
  return id < 0 ? trace_.strings[static_cast<uint32_t>(-1 - id)] : std::to_string(id);
}

uint32_t RecordSink::lane(int64_t process, int64_t thread) {
  const auto [place, is_new] = lanes_.try_emplace({process, thread}, static_cast<uint32_t>(lane_ids_.size()));
  if (is_new) lane_ids_.emplace_back(process, thread);
  return place->second;
}

void RecordSink::add_metadata(const Record& record) {
  const std::string& what = trace_.strings[record.name];
  const std::string& name = trace_.strings[record.argument_name];
  if (what == "process_name") process_names_[record.process] = name;
  if (what == "thread_name") thread_names_[{record.process, record.thread}] = name;
}

void RecordSink::add_event(const Record& record) {
  int64_t duration = record.duration_ns.value_or(0);
  if (record.start_ns && record.end_ns) duration = *record.end_ns - *record.start_ns;
  if (!record.start_ns || (!record.duration_ns && !record.end_ns)) {
    ++without_time_;
    return;
  }
  if (duration < 0) {
    ++negative_;
    return;
  }
  trace_.events.push_back({.start_ns = *record.start_ns,
                           .duration_ns = duration,
                           .correlation = record.correlation,
                           .external = record.external,
                           .flops = record.flops,
                           .bytes = record.bytes,
                           .name = record.name,
                           .lane = lane(record.process, record.thread),
                           .shape = record.shape,
                           .types = record.types,
                           .grid = record.grid,
                           .op = record.op,
                           .stage = record.stage});
  categories_.push_back(record.category);
}

void RecordSink::add_dispatch(Section section, const Record& record) {
  if (!record.start_ns || !record.end_ns || *record.end_ns < *record.start_ns) {
    ++without_time_;
    return;
  }
  const Kind kind = section == Section::kDispatches ? Kind::kKernel
                    : section == Section::kCopies   ? Kind::kCopy
                                                    : Kind::kApi;
  unnamed_.push_back({trace_.events.size(), record.kernel_id, record.kind, record.operation});
  trace_.events.push_back({.start_ns = *record.start_ns,
                           .duration_ns = *record.end_ns - *record.start_ns,
                           .correlation = record.correlation,
                           .bytes = record.bytes,
                           .lane = lane(static_cast<int64_t>(section), 0),
                           .grid = record.grid,
                           .kind = kind});
  categories_.push_back(0);
}

std::string RecordSink::operation_name(int64_t kind, int64_t operation) const {
  if (kind >= 0 && kind < std::ssize(operations_)) {
    const std::vector<std::string>& names = operations_[static_cast<size_t>(kind)];
    if (operation >= 0 && operation < std::ssize(names)) return names[static_cast<size_t>(operation)];
  }
  return fmt::format("operation {} of kind {}", operation, kind);
}

void RecordSink::name_dispatches() {
  for (const Unnamed& one : unnamed_) {
    Event& event = trace_.events[one.event];
    std::string name;
    if (event.kind == Kind::kKernel) {
      const auto found = kernel_names_.find(one.kernel_id);
      name = found == kernel_names_.end() ? fmt::format("kernel {}", one.kernel_id) : found->second;
    } else {
      name = operation_name(one.kind, one.operation);
    }
    event.name = trace_.strings.add(name);
  }
}

void RecordSink::name_lanes() {
  for (const auto& id : lane_ids_) {
    const auto process = process_names_.find(id.first);
    const auto thread = thread_names_.find(id);
    trace_.lanes.push_back({process == process_names_.end() ? id_text(id.first) : process->second,
                            thread == thread_names_.end() ? id_text(id.second) : thread->second});
  }
}

void RecordSink::choose_tool() {
  const bool ours = std::ranges::any_of(
      trace_.facts, [](const auto& fact) { return fact.first == "tool" && fact.second == "tendon"; });
  trace_.tool = ours              ? Tool::kTendon
                : rocprofv3_      ? Tool::kRocprofV3
                : schema_version_ ? Tool::kPyTorch
                : rocprof_        ? Tool::kRocprof
                                  : Tool::kChrome;
}

void RecordSink::choose_kinds() {
  std::vector<Kind> of_text(trace_.strings.size(), Kind::kOther);
  std::vector<bool> known(trace_.strings.size());
  for (size_t i = 0; i < trace_.events.size(); ++i) {
    Event& event = trace_.events[i];
    const uint32_t category = categories_[i];
    if (trace_.tool == Tool::kRocprofV3) continue;
    if (category == 0) {
      event.kind = kind_of_process(trace_.lanes[event.lane].process);
      continue;
    }
    if (!known[category]) {
      of_text[category] = kind_of_category(trace_.strings[category]);
      known[category] = true;
    }
    event.kind = of_text[category];
  }
}

void RecordSink::sort_events() {
  std::vector<Event>& events = trace_.events;
  std::ranges::stable_sort(events, [](const Event& a, const Event& b) {
    return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.duration_ns > b.duration_ns;
  });
  if (events.empty()) return;
  const int64_t first = events.front().start_ns;
  for (Event& event : events) event.start_ns -= first;
}

Trace RecordSink::finish() {
  name_dispatches();
  name_lanes();
  choose_tool();
  choose_kinds();
  sort_events();
  const auto note = [&](size_t count, const char* what) {
    if (count > 0) trace_.notes.push_back(fmt::format("{} {}", count, what));
  };
  note(without_time_, "events without a time were left out");
  note(negative_, "events of negative length were left out");
  note(begin_end_, "begin and end events (ph B, E) were left out: only whole events (ph X) are read");
  return std::move(trace_);
}

}  // namespace tendon::trace
