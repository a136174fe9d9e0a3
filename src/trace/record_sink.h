// Turns the objects of a trace file into events.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trace/record.h"
#include "trace/trace.h"

namespace tendon::trace {

class RecordSink {
 public:
  explicit RecordSink(std::string path) { trace_.path = std::move(path); }

  // `inner`: in an object inside the record, "args" for instance. `position`: in the file, for errors. Throws
  // Error(kBadInput) when a time is no number.
  void set(Record& record, Section section, Field field, bool inner, const Scalar& value, uint64_t position);
  void set_list(Record& record, Field field, const std::string& list);
  void add(Section section, const Record& record, uint64_t position);
  void add_fact(const std::string& key, const Scalar& value);

  void saw_schema_version() { schema_version_ = true; }
  void saw_rocprofv3() { rocprofv3_ = true; }
  void saw(Section section) { events_ = events_ || section == Section::kEvents; }
  bool saw_any() const { return events_ || rocprofv3_; }

  Trace finish();

 private:
  void add_event(const Record& record);
  void add_dispatch(Section section, const Record& record);
  void add_metadata(const Record& record);
  uint32_t lane(int64_t process, int64_t thread);
  std::string id_text(int64_t id) const;
  std::string operation_name(int64_t kind, int64_t operation) const;
  void name_lanes();
  void name_dispatches();
  void choose_tool();
  void choose_kinds();
  void sort_events();

  Trace trace_;
  std::map<std::pair<int64_t, int64_t>, uint32_t> lanes_;
  std::map<int64_t, std::string> process_names_;
  std::map<std::pair<int64_t, int64_t>, std::string> thread_names_;
  std::vector<uint32_t> categories_;  // of each event
  std::vector<std::pair<int64_t, int64_t>> lane_ids_;
  // rocprofv3: names stand apart from the dispatches.
  struct Unnamed {
    size_t event;
    int64_t kernel_id, kind, operation;
  };
  std::vector<Unnamed> unnamed_;
  std::map<int64_t, std::string> kernel_names_;
  std::vector<std::vector<std::string>> operations_;  // [kind][operation]
  std::vector<std::string> operations_of_kind_;       // being read
  bool schema_version_ = false, rocprofv3_ = false, rocprof_ = false, events_ = false;
  size_t without_time_ = 0, negative_ = 0, begin_end_ = 0;
};

}  // namespace tendon::trace
