#include "trace/read.h"

#include <algorithm>
#include <map>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "trace/byte_source.h"
#include "trace/record.h"
#include "trace/record_sink.h"

namespace tendon::trace {
namespace {

constexpr size_t kMostShownKeys = 8;

// Follows the parser through the file, and gives every object of a known list to the sink.
class Handler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Handler(const ByteSource& source, RecordSink& sink) : source_(source), sink_(sink) {}

  bool null() override { return scalar({}); }
  bool boolean(bool) override { return scalar({}); }
  bool number_integer(number_integer_t value) override {
    return scalar({.type = Scalar::Type::kInteger, .integer = value, .text = {}});
  }
  bool number_unsigned(number_unsigned_t value) override {
    const auto largest = static_cast<number_unsigned_t>(INT64_MAX);
    return scalar(
        {.type = Scalar::Type::kInteger, .integer = static_cast<int64_t>(std::min(value, largest)), .text = {}});
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return scalar({.type = Scalar::Type::kFloat, .real = value, .text = text});
  }
  bool string(string_t& value) override { return scalar({.type = Scalar::Type::kText, .text = value}); }
  bool binary(binary_t&) override { return true; }

  bool key(string_t& text) override {
    if (in_record_ || section_ == Section::kFacts) {
      field_ = field_of(text);
      if (section_ == Section::kFacts) fact_ = text;
      return true;
    }
    next_section_ = section_of(text);
    if (depth_ == 1 && top_keys_.size() < kMostShownKeys) top_keys_.push_back(text);
    if (text == "schemaVersion") sink_.saw_schema_version();
    if (text == "rocprofiler-sdk-tool") sink_.saw_rocprofv3();
    return true;
  }

  bool start_object(std::size_t) override {
    open();
    if (section_ == Section::kNone && next_section_ == Section::kFacts) {
      section_ = Section::kFacts;
      section_depth_ = depth_;
    } else if (section_ != Section::kNone && section_ != Section::kFacts && !in_record_ &&
               depth_ == section_depth_ + 1) {
      in_record_ = true;
      record_ = {};
      field_ = Field::kUnknown;
    }
    next_section_ = Section::kNone;
    return true;
  }
  bool end_object() override {
    if (in_record_ && depth_ == section_depth_ + 1) {
      in_record_ = false;
      sink_.add(section_, record_, source_.position());
    }
    close();
    return true;
  }
  bool start_array(std::size_t) override {
    open();
    if (depth_ == 1) next_section_ = Section::kEvents;  // the form without an object round the list
    if (section_ == Section::kNone && next_section_ != Section::kNone && next_section_ != Section::kFacts) {
      section_ = next_section_;
      section_depth_ = depth_;
      sink_.saw(section_);
    }
    next_section_ = Section::kNone;
    return true;
  }
  bool end_array() override {
    close();
    return true;
  }

  bool parse_error(std::size_t, const std::string& last, const nlohmann::detail::exception&) override {
    const uint64_t at = source_.position();
    constexpr size_t kShown = 40;
    const std::string shown = last.size() > kShown ? "…" + last.substr(last.size() - kShown) : last;
    broken_ = at == 0 ? std::string("the file is empty")
                      : fmt::format("the JSON is broken or ends early at byte {} (line {}), after '{}'", at,
                                    source_.line_of(at), printable(shown));
    return false;
  }

  const std::string& broken() const { return broken_; }
  std::string top_keys() const {
    std::string text;
    for (const std::string& one : top_keys_) text += (text.empty() ? "" : ", ") + printable(one.substr(0, 40));
    return text.empty() ? "none" : text;
  }

 private:
  static std::string printable(std::string text) {
    std::ranges::replace_if(
        text, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
    return text;
  }

  // Lists inside a record that are wanted as one text: shapes, types, grids.
  static bool is_list(Field field) { return field == Field::kDims || field == Field::kTypes || field == Field::kGrid; }

  void open() {
    ++depth_;
    if (!in_record_) return;
    if (list_depth_ > 0 || is_list(field_)) {
      if (list_depth_ == 0) {
        list_depth_ = depth_;
        list_field_ = field_;
        list_.clear();
      } else {
        separate();
      }
      list_ += '[';
    }
  }
  void close() {
    if (list_depth_ > 0) {
      list_ += ']';
      if (depth_ == list_depth_) {
        list_depth_ = 0;
        sink_.set_list(record_, list_field_, list_);
        field_ = Field::kUnknown;
      }
    }
    if (section_ != Section::kNone && depth_ == section_depth_) section_ = Section::kNone;
    --depth_;
  }
  void separate() {
    if (list_.back() != '[') list_ += ',';
  }

  bool scalar(const Scalar& value) {
    next_section_ = Section::kNone;
    if (section_ == Section::kFacts) {
      sink_.add_fact(fact_, value);
      return true;
    }
    if (!in_record_) return true;
    if (list_depth_ > 0) {
      separate();
      if (value.type == Scalar::Type::kInteger) {
        fmt::format_to(std::back_inserter(list_), "{}", value.integer);
      } else {
        list_ += value.text;
      }
      return true;
    }
    if (field_ == Field::kUnknown) return true;
    const bool inner = depth_ > section_depth_ + 1;
    sink_.set(record_, section_, field_, inner, value, source_.position());
    return true;
  }

  const ByteSource& source_;
  RecordSink& sink_;
  Record record_;
  std::string fact_, broken_, list_;
  std::vector<std::string> top_keys_;
  size_t depth_ = 0, section_depth_ = 0, list_depth_ = 0;
  Section section_ = Section::kNone, next_section_ = Section::kNone;
  Field field_ = Field::kUnknown, list_field_ = Field::kUnknown;
  bool in_record_ = false;
};

}  // namespace

Trace read_trace(const std::string& path) {
  ByteSource source(path);
  RecordSink sink(path);
  Handler handler(source, sink);
  const bool whole = nlohmann::json::sax_parse(ByteIterator(source), ByteIterator(), &handler);
  if (!whole) throw_bad_input("'{}': {}. Is it a trace, and was its writer left to finish?", path, handler.broken());
  if (!sink.saw_any()) {
    throw_bad_input(
        "'{}' is JSON but no trace that is known here: it has no list 'traceEvents' and no 'rocprofiler-sdk-tool'. "
        "Keys at its top: {}.",
        path, handler.top_keys());
  }
  return sink.finish();
}

}  // namespace tendon::trace
