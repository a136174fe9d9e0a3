// Reading a small user-supplied file whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "base/check.h"

namespace tendon {

// The bytes of `path`. Throws kBadInput if it is missing, not a regular file, unreadable or larger than `max_bytes`;
// `what` names the kind of file in the message ("image", "tokenizer model").
inline std::string read_small_file(const std::string& path, size_t max_bytes, const char* what) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw_bad_input("cannot read {} '{}': there is no such regular file. Check the path.", what, path);
  }
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) throw_bad_input("cannot read {} '{}': {}.", what, path, error.message());
  if (bytes > max_bytes) {
    throw_bad_input("{} '{}' is {} bytes long; the limit is {} bytes. Check that this is the file you meant.", what,
                    path, bytes, max_bytes);
  }
  std::string content(static_cast<size_t>(bytes), '\0');
  std::ifstream stream(path, std::ios::binary);
  stream.read(content.data(), static_cast<std::streamsize>(content.size()));
  if (!stream || static_cast<size_t>(stream.gcount()) != content.size()) {
    throw_bad_input("cannot read {} '{}': reading failed. Check that the file may be read.", what, path);
  }
  return content;
}

}  // namespace tendon
