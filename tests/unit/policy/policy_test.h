// Shared by the policy tests: fixtures and the check of refusals.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/check.h"

namespace tendon {

inline std::string fixture(const std::string& name) { return std::string(TENDON_TEST_DATA) + "/policy/" + name; }

inline std::string read_text(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  EXPECT_TRUE(stream) << path;
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline nlohmann::json read_json(const std::string& name) { return nlohmann::json::parse(read_text(fixture(name))); }

inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

inline std::vector<uint8_t> bytes_from_hex(const std::string& hex) {
  const std::string bytes = from_hex(hex);
  return {bytes.begin(), bytes.end()};
}

// A file in a folder of this process, removed with the object.
class TempFile {
 public:
  TempFile(const std::string& name, const std::string& content)
      : path_(std::filesystem::temp_directory_path() / ("tendon_" + std::to_string(getpid()) + "_" + name)) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  ~TempFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Expects `call` to throw an Error of this kind whose message holds all of `parts`.
template <class Call>
void expect_refused(ErrorKind kind, const std::vector<std::string>& parts, const Call& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; wanted: " << ::testing::PrintToString(parts);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "'" << part << "' not in: " << error.what();
    }
  }
}

template <class Call>
void expect_bad_input(const std::vector<std::string>& parts, const Call& call) {
  expect_refused(ErrorKind::kBadInput, parts, call);
}

template <class Call>
void expect_bad_use(const std::vector<std::string>& parts, const Call& call) {
  expect_refused(ErrorKind::kBadUse, parts, call);
}

}  // namespace tendon
