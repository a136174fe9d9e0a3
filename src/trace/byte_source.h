// The bytes of a file, unpacked when it is gzipped, as an input iterator for the JSON parser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace tendon::trace {

class ByteSource {
 public:
  // Throws Error(kBadInput) when the file cannot be opened.
  explicit ByteSource(const std::string& path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  // False at the end of the file. Throws Error(kBadInput) when the gzip data are broken or end early.
  bool has_more() { return at_ != end_ || refill(); }
  char peek() const { return *at_; }
  void skip() { ++at_; }
  // Bytes handed out so far, after unpacking.
  uint64_t position() const { return before_ + static_cast<uint64_t>(at_ - buffer_.data()); }
  // The line, from 1, of a byte that is in the buffer or at its end.
  uint64_t line_of(uint64_t position) const;

 private:
  bool refill();

  std::string path_;
  void* file_ = nullptr;  // gzFile
  std::vector<char> buffer_;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  uint64_t before_ = 0;        // bytes in front of the buffer
  uint64_t lines_before_ = 0;  // line ends in them
};

class ByteIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  ByteIterator() = default;  // the end
  explicit ByteIterator(ByteSource& source) : source_(&source) {}
  char operator*() const { return source_->peek(); }
  ByteIterator& operator++() {
    source_->skip();
    return *this;
  }
  void operator++(int) { source_->skip(); }
  // Meant for comparing with the end only.
  bool operator==(const ByteIterator&) const { return source_ == nullptr || !source_->has_more(); }

 private:
  ByteSource* source_ = nullptr;
};

}  // namespace tendon::trace
