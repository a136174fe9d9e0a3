// What a device did, kernel by kernel, inside replayed graphs too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tendon {

struct DeviceActivity {
  enum class Kind : uint8_t { kKernel, kCopy, kFill, kApi };
  Kind kind = Kind::kKernel;
  std::string name;
  double start_us = 0, duration_us = 0;  // start: since DeviceTracer::start
  int64_t bytes = 0;                     // of copies and fills
  std::string grid = {};                 // of kernels: "[2,66,1]"
  int64_t op = -1;           // what next_op said when it was launched; -1: nothing, as for a graph's kernels
  uint32_t correlation = 0;  // the same for a launch and what it launched
};

// One at a time per process. Calls throw Error(kDevice) when the vendor's library refuses them.
class DeviceTracer {
 public:
  virtual ~DeviceTracer() = default;
  virtual std::string library() const = 0;  // "CUPTI 13.2"
  // `calls`: also the host's calls, and next_op; without them tracing costs the traced work less. When it was started
  // already, what it has recorded so far is forgotten.
  virtual void start(bool calls) = 0;
  // What the calling thread launches from here on belongs to this operation; -1: to none.
  virtual void next_op(int64_t op) = 0;
  // All activity since start, by start; the device must have finished. `dropped`: what did not fit into the library's
  // buffers.
  virtual std::vector<DeviceActivity> stop(size_t& dropped) = 0;
};

// Either a tracer or the reason why there is none.
struct TracerOrReason {
  std::unique_ptr<DeviceTracer> tracer = nullptr;
  std::string reason = {};
};

}  // namespace tendon
