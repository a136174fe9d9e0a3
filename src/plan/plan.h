// A recorded forward made ready for one backend: fused operations expanded where the backend has no kernel, values
// placed in one arena, operations bound to addresses, executable prepared. Nothing is allocated afterwards.
//
// The arena begins with all inputs, one behind the other, then all outputs. A device that cannot read host memory gets
// a mirror of both in pinned host memory, and every run copies the inputs there and the outputs back: two copies a run.
// Where the host computes the mirror is the arena itself.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "ops/recorder.h"

namespace tendon {

struct PlanOptions {
  // Names of fused operations to expand although the backend has a kernel for them (a rung of the ladder).
  std::vector<std::string> expand;
  // Where scratch memory of at least so many bytes is, for plans that never run at the same time and share it. It must
  // outlive the plan. Empty: the plan has its own.
  std::function<void*(size_t bytes)> workspace = {};
};

class Plan {
 public:
  // Throws Error(kInternal) naming operation and shapes when the backend supports neither an operation nor its
  // expansion, Error(kDevice) when memory is short.
  Plan(Backend& backend, const Recorder& recorded, const PlanOptions& options = {});

  // Where the caller writes an input before a run, and finds an output after it: host memory, without a further copy.
  // Throws Error(kInternal) for any other name.
  Tensor host(std::string_view name) const;
  // Copies into an input or kept value / out of any named value; `bytes` must be the value's size. For tests and
  // checks.
  void write(std::string_view name, const void* host, size_t bytes);
  void read(std::string_view name, void* host, size_t bytes) const;
  // Bound view of a named value (device memory). Throws Error(kInternal) when there is none.
  const Tensor& tensor(std::string_view name) const;
  bool has(std::string_view name) const { return named_.find(name) != named_.end(); }

  Status run(OpTimes* times = nullptr) noexcept { return executable_->run(times); }

  // Runs in halves; see Executable. Plans whose halves overlap share no workspace.
  bool split(size_t end_of_front, PreferredHalf preferred) { return executable_->split(end_of_front, preferred); }
  Status start() noexcept { return executable_->start(); }
  Status finish() noexcept { return executable_->finish(); }

  // For measurements; see Executable.
  std::optional<size_t> device_work() const { return executable_->device_work(); }
  void time_device(bool on) { executable_->time_device(on); }
  std::optional<double> device_us() const { return executable_->device_us(); }
  Status run_pieces(std::span<const size_t> ends, std::span<double> us) noexcept {
    return executable_->run_pieces(ends, us);
  }
  size_t launch_in_pieces(std::span<const size_t> ends) { return executable_->launch_in_pieces(ends); }

  const std::vector<Op>& ops() const { return ops_; }  // bound, in execution order
  size_t arena_bytes() const { return arena_.bytes(); }
  size_t pinned_bytes() const { return mirror_.bytes(); }
  size_t workspace_bytes() const { return workspace_bytes_; }

 private:
  // A value that can be reached by name; `host` is null where the caller has to copy.
  struct Named {
    Tensor device;
    void* host = nullptr;
  };
  const Named& named(std::string_view name) const;

  Backend& backend_;
  std::vector<Op> ops_;
  std::map<std::string, Named, std::less<>> named_;
  DeviceBlock arena_, workspace_;
  size_t workspace_bytes_ = 0;
  HostBlock mirror_;
  std::unique_ptr<Executable> executable_;
};

}  // namespace tendon
