// Writes Chrome trace-event JSON, which ui.perfetto.dev and chrome://tracing open.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tendon::trace {

// A text or a number beside an event. Numbers that are not finite are left out.
using Argument = std::pair<std::string, std::variant<std::string, double, int64_t>>;

struct Span {
  int process = 0, thread = 0;
  std::string category, name;
  double start_us = 0, duration_us = 0;
  std::vector<Argument> arguments = {};
};

class ChromeWriter {
 public:
  // Gzipped when the name ends in .gz. Throws Error(kBadInput) when the file cannot be written.
  explicit ChromeWriter(std::string path);
  ~ChromeWriter();
  ChromeWriter(const ChromeWriter&) = delete;
  ChromeWriter& operator=(const ChromeWriter&) = delete;

  // What holds for the whole file. Before all else.
  void facts(const std::vector<std::pair<std::string, std::string>>& facts);
  // Processes, and the threads of each, are shown in the order of their numbers.
  void name_process(int process, const std::string& name);
  void name_thread(int process, int thread, const std::string& name);
  // Spans of one thread must lie apart or within each other.
  void add(const Span& span);
  // A value that changes over time: "power W".
  void counter(int process, const std::string& name, double at_us, double value);
  // Completes the file; throws Error(kBadInput) when something could not be written.
  void finish();

 private:
  void describe(const std::string& what, int process, int thread, const std::string& name, int order);
  void event(const std::string& json);
  void write(const std::string& text);

  std::string path_;
  void* file_ = nullptr;  // gzFile
  bool any_ = false, failed_ = false;
};

}  // namespace tendon::trace
