#include "trace/byte_source.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/check.h"

namespace tendon::trace {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

gzFile gz(void* file) { return static_cast<gzFile>(file); }

}  // namespace

ByteSource::ByteSource(const std::string& path) : path_(path), buffer_(kBufferBytes) {
  at_ = end_ = buffer_.data();
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw_bad_input("'{}' is a directory. Give the trace file in it.", path);
  }
  errno = 0;
  file_ = gzopen(path.c_str(), "rb");
  if (file_ == nullptr) {
    throw_bad_input("Cannot open '{}': {}. Check the path.", path, errno != 0 ? std::strerror(errno) : "no memory");
  }
  gzbuffer(gz(file_), kBufferBytes);
}

ByteSource::~ByteSource() { gzclose(gz(file_)); }

bool ByteSource::refill() {
  lines_before_ += static_cast<uint64_t>(std::count(static_cast<const char*>(buffer_.data()), end_, '\n'));
  before_ += static_cast<uint64_t>(end_ - buffer_.data());
  at_ = end_ = buffer_.data();
  const int read = gzread(gz(file_), buffer_.data(), static_cast<unsigned>(buffer_.size()));
  int status = Z_OK;
  const char* const reason = gzerror(gz(file_), &status);
  if (read < 0 || (status != Z_OK && status != Z_STREAM_END && read == 0)) {
    throw_bad_input("'{}': the gzip data are broken after {} unpacked bytes: {}. Copy or record the file again.", path_,
                    before_, status == Z_ERRNO ? std::strerror(errno) : reason);
  }
  end_ = at_ + read;
  return read > 0;
}

uint64_t ByteSource::line_of(uint64_t position) const {
  const uint64_t in_buffer = position > before_ ? position - before_ : 0;
  const char* const begin = buffer_.data();
  const char* const until = begin + std::min<uint64_t>(in_buffer, static_cast<uint64_t>(end_ - begin));
  return 1 + lines_before_ + static_cast<uint64_t>(std::count(begin, until, '\n'));
}

}  // namespace tendon::trace
