// A client's message while it comes, and until it is read.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "server/inference_queue.h"

namespace tendon {

// Bytes that are not set to anything before they are read into. Who reads what has come holds `bytes` as well.
struct MessageBuffer {
  std::shared_ptr<std::byte[]> bytes;
  size_t capacity = 0, size = 0;

  void grow_to(size_t wanted) {
    auto larger = std::make_shared_for_overwrite<std::byte[]>(wanted);
    if (size > 0) std::memcpy(larger.get(), bytes.get(), size);
    bytes = std::move(larger);
    capacity = wanted;
  }
  std::byte* end() const { return bytes.get() + size; }
  std::span<const std::byte> view() const { return {bytes.get(), size}; }
};

struct Message {
  MessageBuffer buffer;
  std::shared_ptr<Intake> intake;  // of a large one that came fast
  size_t looked_bytes = 0;         // what it was given last
  bool is_expected = false;        // by the worker
  bool is_text = false;
  std::chrono::steady_clock::time_point begin, received;  // first and last bytes

  // Whether so much has come, and so fast, that nobody notices when the rest is waited for in larger portions.
  bool is_fast(std::chrono::steady_clock::time_point now) const {
    constexpr size_t kFirstBytes = 32 << 10;
    constexpr double kBytesPerSecond = 8e6;
    const double needed_s = static_cast<double>(buffer.size) / kBytesPerSecond;
    return buffer.size >= kFirstBytes && std::chrono::duration<double>(now - begin).count() < needed_s;
  }
};

}  // namespace tendon
