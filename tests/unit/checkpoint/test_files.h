// Small files and checkpoints made on the spot, and a check of what a refusal says.
#pragma once

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/safetensors.h"

namespace tendon::test {

// A fresh directory, removed at the end of the test.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tendon_test_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

// Bytes of a safetensors file with any header, right or wrong; the header is padded to a multiple of 8 bytes.
inline std::string raw_safetensors(std::string header, size_t data_bytes) {
  while (header.size() % 8 != 0) header.push_back(' ');
  std::string text(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(text.data(), &length, sizeof(length));
  return text + header + std::string(data_bytes, '\1');
}

inline std::vector<std::byte> to_bytes(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

// Tensors by name. `fill` is the byte that the data consists of.
struct TestTensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<std::byte> data;
};
using TestTensors = std::map<std::string, TestTensor>;

inline TestTensor filled(DType dtype, const Shape& shape, int fill) {
  return {
      dtype, shape,
      std::vector<std::byte>(static_cast<size_t>(shape.elements()) * dtype_bytes(dtype), static_cast<std::byte>(fill))};
}

inline TestTensor floats(const std::vector<float>& values) {
  TestTensor tensor{DType::kF32, {static_cast<int64_t>(values.size())}, {}};
  const auto* begin = reinterpret_cast<const std::byte*>(values.data());
  tensor.data.assign(begin, begin + values.size() * sizeof(float));
  return tensor;
}

inline void write_safetensors(const std::filesystem::path& path, const TestTensors& tensors) {
  std::filesystem::create_directories(path.parent_path());
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(path, specs);
  for (const auto& [name, tensor] : tensors) writer.append(std::span<const std::byte>(tensor.data));
  writer.finish();
}

// All tensors of a file, to be renamed and written again.
inline TestTensors read_tensors(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  TestTensors tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    tensors[entry.name] = {entry.dtype, entry.shape, {entry.data, entry.data + entry.size_bytes}};
  }
  return tensors;
}

// Collects log lines.
struct Log {
  std::vector<std::string> infos, warnings;
  LogSink sink() {
    return [this](LogLevel level, const std::string& text) {
      (level == LogLevel::kWarning ? warnings : infos).push_back(text);
    };
  }
  // How many lines of either level contain `text`.
  size_t count(std::string_view text) const {
    size_t found = 0;
    for (const auto* lines : {&infos, &warnings}) {
      for (const std::string& line : *lines) found += line.find(text) != std::string::npos ? 1 : 0;
    }
    return found;
  }
};

// Runs `action`, which must throw Error(kBadInput) whose message holds every one of `parts`.
inline void expect_refusal(const std::function<void()>& action, const std::vector<std::string>& parts,
                           ErrorKind kind = ErrorKind::kBadInput) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "no '" << part << "' in: " << error.what();
    }
    return;
  }
  ADD_FAILURE() << "accepted; expected a refusal that names " << (parts.empty() ? "the cause" : parts.front());
}

inline std::filesystem::path test_data(const std::string& name) {
  return std::filesystem::path(TENDON_TEST_DATA) / name;
}

}  // namespace tendon::test
