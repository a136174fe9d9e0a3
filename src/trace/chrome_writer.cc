#include "trace/chrome_writer.h"

#include <zlib.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "base/check.h"

namespace tendon::trace {
namespace {

using Json = nlohmann::ordered_json;

gzFile gz(void* file) { return static_cast<gzFile>(file); }

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Times have three decimals, which are nanoseconds.
double rounded(double us) { return std::round(us * 1e3) / 1e3; }

}  // namespace

ChromeWriter::ChromeWriter(std::string path) : path_(std::move(path)) {
  file_ = gzopen(path_.c_str(), path_.ends_with(".gz") ? "wb6" : "wbT");
  if (file_ == nullptr) throw_bad_input("cannot write '{}'. Check the directory and its rights.", path_);
}

ChromeWriter::~ChromeWriter() {
  if (file_ != nullptr) gzclose(gz(file_));
}

void ChromeWriter::facts(const std::vector<std::pair<std::string, std::string>>& facts) {
  Json json = {{"tool", "tendon"}};
  for (const auto& [key, value] : facts) json[key] = value;
  write("{\"displayTimeUnit\": \"ms\",\n\"otherData\": " + text_of(json) + ",\n\"traceEvents\": [");
}

void ChromeWriter::name_process(int process, const std::string& name) {
  describe("process", process, 0, name, process);
}

void ChromeWriter::name_thread(int process, int thread, const std::string& name) {
  describe("thread", process, thread, name, thread);
}

void ChromeWriter::describe(const std::string& what, int process, int thread, const std::string& name, int order) {
  const auto metadata = [&](const char* kind, const Json& arguments) {
    event(text_of({{"ph", "M"}, {"name", what + kind}, {"pid", process}, {"tid", thread}, {"args", arguments}}));
  };
  metadata("_name", {{"name", name}});
  metadata("_sort_index", {{"sort_index", order}});
}

void ChromeWriter::add(const Span& span) {
  Json json = {{"ph", "X"},
               {"cat", span.category},
               {"name", span.name},
               {"pid", span.process},
               {"tid", span.thread},
               {"ts", rounded(span.start_us)},
               {"dur", rounded(span.duration_us)}};
  Json arguments = Json::object();
  for (const auto& [key, value] : span.arguments) {
    if (const auto* number = std::get_if<double>(&value); number != nullptr && !std::isfinite(*number)) continue;
    std::visit([&, &name = key](const auto& one) { arguments[name] = one; }, value);
  }
  json["args"] = std::move(arguments);
  event(text_of(json));
}

void ChromeWriter::counter(int process, const std::string& name, double at_us, double value) {
  if (!std::isfinite(value)) return;
  event(text_of({{"ph", "C"},
                 {"name", name},
                 {"pid", process},
                 {"tid", 0},
                 {"ts", rounded(at_us)},
                 {"args", {{"value", value}}}}));
}

void ChromeWriter::event(const std::string& json) {
  write((any_ ? ",\n" : "\n") + json);
  any_ = true;
}

void ChromeWriter::write(const std::string& text) {
  if (gzwrite(gz(file_), text.data(), static_cast<unsigned>(text.size())) != static_cast<int>(text.size())) {
    failed_ = true;
  }
}

void ChromeWriter::finish() {
  write("\n]}\n");
  failed_ = gzclose(gz(file_)) != Z_OK || failed_;
  file_ = nullptr;
  if (failed_) throw_bad_input("cannot write '{}'. Check the disk's space.", path_);
}

}  // namespace tendon::trace
