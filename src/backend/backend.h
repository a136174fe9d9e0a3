// What a device must offer. The plan binds a recorded forward to memory of a backend and asks it for an executable.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/device_tracer.h"
#include "base/check.h"
#include "base/status.h"
#include "base/value_rule.h"
#include "ops/ops.h"

namespace tendon {

namespace gemm {
class TuneTarget;
}

// The highest rates that anybody measured on this kind of device: what a time can be compared with. 0: not measured.
struct DeviceLimits {
  double bf16_flops_per_s = 0;
  double read_bytes_per_s = 0;
};

struct DeviceInfo {
  std::string name;          // "Intel(R) Xeon(R) Processor"
  std::string architecture;  // "avx512_bf16", "sm_90"
  // Versions, and what kernels are chosen by; empty where there is nothing of the kind.
  std::string driver = {}, runtime = {}, library = {}, gemm_table = {};
  size_t memory_bytes = 0;
  size_t free_bytes = 0;
  int threads_or_sms = 0;
  DeviceLimits limits = {};
};

// What the sensors of a device say at this moment; what they do not offer stays empty.
struct DeviceSensors {
  std::string missing = {};             // why nothing, or not all, can be read
  std::optional<double> energy_j = {};  // drawn since an arbitrary moment
  std::optional<double> core_mhz = {}, memory_mhz = {};
  std::optional<double> power_w = {}, temperature_c = {};
  std::optional<std::string> slowed_by = {};  // what keeps the clocks down: "power cap, heat"; empty: nothing
};

// Time of each operation of one run, in the order of the executable's operations.
struct OpTimes {
  std::vector<double> start_us, duration_us;      // since the start of the run
  std::function<void(size_t op)> before_op = {};  // on a device: called before each operation is launched
};

// A copy between the device and pinned host memory; no bytes, no copy.
struct Transfer {
  void* device = nullptr;
  void* host = nullptr;
  size_t bytes = 0;
};

// The copies that belong to every run: to the device before the first operation, to the host after the last.
struct Transfers {
  Transfer inputs, outputs;
};

// Of two halves of runs that want the device at the same time, the one that it serves first. Never the front: a back
// may be a kernel whose blocks wait for each other, and holds what it has got until all of them are there; a front's
// kernel that finds no room beside them, as a cluster may not, would stand in their way for ever.
enum class PreferredHalf { kNeither, kBack };

// A list of bound operations, ready to run any number of times.
class Executable {
 public:
  virtual ~Executable() = default;
  // Runs the transfers and all operations, and waits for them. Allocates nothing unless `times` is given (then one
  // entry an operation).
  virtual Status run(OpTimes* times) noexcept = 0;

  // Kernels and copies that a run consists of, where they are known as one graph.
  virtual std::optional<size_t> device_work() const { return {}; }

  // From now on, measures run(nullptr) with the device's own clock, or no longer.
  virtual void time_device(bool /*on*/) {}
  // Device time of the last run(nullptr) so measured, in µs; nothing where the host itself computes.
  virtual std::optional<double> device_us() const { return {}; }
  // Runs all operations as run(nullptr) does, but in us.size() pieces: piece i ends before operation ends[i], the last
  // one at the end of the list. us[i] becomes its time on the device. For measurements: may allocate.
  virtual Status run_pieces(std::span<const size_t> ends, std::span<double> us) noexcept;
  // From now on, run(nullptr) launches its work in pieces that end before the operations `ends`, ascending, and at the
  // end of the list; with no ends at once again. For tracers, whose library has work on the host with all kernels of a
  // graph before the first of them runs. Returns the number of pieces, 1 where there are no graphs. May allocate;
  // throws Error(kDevice).
  virtual size_t launch_in_pieces(std::span<const size_t> /*ends*/) { return 1; }

  // Runs in halves: the operations before `end_of_front`, and the others. With start() and finish(), fronts follow each
  // other in the order of start(), over all executables of the backend that prefer the same half, and so do backs, each
  // behind its own front; a front and the back of another executable may overlap. Only executables that share no memory
  // which they write may be started at the same time. Returns whether anything overlaps here. May allocate; throws
  // Error(kDevice).
  virtual bool split(size_t /*end_of_front*/, PreferredHalf /*preferred*/) { return false; }
  // Begins a run and does not wait for it: inputs and outputs belong to it until finish(). After an error nothing runs.
  virtual Status start() noexcept { return Status::ok(); }
  // Waits for the run that start() began. Where nothing overlaps the run is made here.
  virtual Status finish() noexcept { return run(nullptr); }
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;
  virtual DeviceInfo info() const = 0;
  virtual DeviceSensors sensors() const { return {.missing = "this backend reads no sensors"}; }

  // True when the operation has a kernel here for these types and shapes. Fused operations without one are expanded.
  virtual bool supports(const Op& op) const = 0;
  // The kernel that would run: "cpu.linear (oneDNN f32, widened weights)"; for `tendon info`.
  virtual std::string kernel_name(const Op& op) const = 0;
  // Scratch memory that a supported operation needs while it runs; all operations of an executable share it.
  virtual size_t workspace_bytes(const Op& op) const = 0;
  virtual std::unique_ptr<Executable> prepare(std::vector<Op> ops, void* workspace, size_t workspace_bytes,
                                              const Transfers& transfers) = 0;

  // Device memory, 256-byte aligned. Throws Error(kDevice) with need and free when there is not enough.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;
  virtual void fill_zero(void* device, size_t bytes) = 0;
  // An upload that goes on while the host does something else. `host` comes from allocate_host and must stay as it is
  // until finish_uploads().
  virtual void begin_upload(void* device, const void* host, size_t bytes) { upload(device, host, bytes); }
  // Until all uploads and fills have landed; throws Error(kDevice) with what went wrong in them.
  virtual void finish_uploads() {}
  // Fills a contiguous device tensor, bf16 or f32, by the rule; done after finish_uploads(). False: this backend does
  // not, the host has to.
  virtual bool fill_by_rule(const Tensor& /*device*/, const ValueRule& /*rule*/) { return false; }
  // Host memory that the device copies from and to, and that kernels read at the same address, 256-byte aligned:
  // page-locked for a device, plain where the host computes. Throws Error(kDevice) when there is not enough.
  virtual void* allocate_host(size_t bytes);
  virtual void release_host(void* memory) noexcept;
  // True when kernels can read host memory, so that mapped weights need no copy.
  virtual bool uses_host_memory() const = 0;

  // For `tendon trace`.
  virtual TracerOrReason make_tracer() { return {.reason = "this backend has no tracer of kernels"}; }

  // For `tendon tune`: null where no kernels are chosen from a table (backend/gemm/tuner.h).
  virtual gemm::TuneTarget* tune_target() { return nullptr; }
};

// Owns one allocation of a backend, got and given back by two of its functions.
template <void* (Backend::*kAllocate)(size_t), void (Backend::*kRelease)(void*) noexcept>
class BackendBlock {
 public:
  BackendBlock() = default;
  BackendBlock(Backend& backend, size_t bytes)
      : backend_(&backend), data_(bytes == 0 ? nullptr : (backend.*kAllocate)(bytes)), bytes_(bytes) {}
  BackendBlock(BackendBlock&& other) noexcept { swap(other); }
  BackendBlock& operator=(BackendBlock&& other) noexcept {
    swap(other);
    return *this;
  }
  ~BackendBlock() {
    if (data_ != nullptr) (backend_->*kRelease)(data_);
  }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(BackendBlock& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};
using DeviceBlock = BackendBlock<&Backend::allocate, &Backend::release>;
using HostBlock = BackendBlock<&Backend::allocate_host, &Backend::release_host>;

}  // namespace tendon
