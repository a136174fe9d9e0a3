// One card with its own stream, behind an interface that CUDA, HIP and the tests' simulated card implement.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "backend/gpu/stream.h"

namespace tendon::gpu {

// What happened on the card since it was opened. After start-up only graph_launches and synchronisations may grow.
struct Counters {
  uint64_t allocations = 0;       // device memory
  uint64_t host_allocations = 0;  // pinned host memory
  uint64_t captures = 0;
  uint64_t instantiations = 0;
  uint64_t graph_launches = 0;
  uint64_t synchronisations = 0;
};

// Work captured once, instantiated and uploaded: launching it allocates nothing.
class Graph {
 public:
  virtual ~Graph() = default;
  // Throws Error(kDevice).
  virtual void launch(Stream stream) = 0;
  // Kernels, copies and fills in it, where the vendor counts them.
  virtual std::optional<size_t> size() const { return {}; }
};

// A point in a stream's work.
class Event {
 public:
  virtual ~Event() = default;
};

// Two more streams of the card, for work in two halves. Calls throw Error(kDevice).
class HalfStreams {
 public:
  virtual ~HalfStreams() = default;
  // Puts `front` behind the fronts before it, `back` behind it and the backs before it; the events become the ends of
  // the two. When it throws, nothing of either is under way.
  virtual void launch(Graph& front, Graph& back, Event& front_end, Event& back_end) = 0;
  // Until the work in front of the event is done; reports what went wrong in it.
  virtual void wait(const Event& back_end) = 0;
};

// Unless noted, calls throw Error(kDevice) naming the call and the vendor's reason. While a stream is being captured,
// nothing that waits or allocates is allowed: the vendor answers with an error and the capture is lost.
class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual DeviceInfo info() const = 0;
  virtual DeviceSensors sensors() const = 0;
  // 90 for "sm_90".
  virtual int architecture() const = 0;
  // That a launch can ask for; where nobody says, all that tiles were written for.
  virtual size_t shared_bytes_per_block() const { return SIZE_MAX; }
  // Does not block on, nor wait for, the process's other streams.
  virtual Stream stream() const = 0;
  // A thread calls this before it launches kernels by itself.
  virtual void make_current() = 0;

  // 256-byte aligned; null when there is not enough.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  // Pinned, and kernels read it at this address: copies run beside the host. Null when there is not enough.
  virtual void* allocate_host(size_t bytes) = 0;
  virtual void release_host(void* memory) noexcept = 0;

  // In stream order. Ordinary host memory may be reused after the call, pinned memory after synchronize().
  virtual void copy_to_device(void* device, const void* host, size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* device, size_t bytes) = 0;
  virtual void fill_zero(void* device, size_t bytes) = 0;
  // Until all work of the stream is done; reports what went wrong in it.
  virtual void synchronize() = 0;

  // What the calling thread launches on the stream from here on is recorded instead of run. Other threads go on.
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Graph> end_capture() = 0;
  // After a failure between the two: the stream is usable again.
  virtual void abandon_capture() noexcept = 0;

  virtual std::unique_ptr<Event> make_event() = 0;
  virtual void record(Event& event) = 0;
  virtual double elapsed_us(const Event& from, const Event& to) = 0;

  // Null where all work goes through one stream.
  virtual std::unique_ptr<HalfStreams> make_half_streams(PreferredHalf /*preferred*/) { return nullptr; }

  virtual TracerOrReason make_tracer() { return {.reason = "this card has no tracer of kernels"}; }

  const Counters& counters() const { return counters_; }

 protected:
  Counters counters_;
};

}  // namespace tendon::gpu
