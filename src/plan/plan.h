// A recorded forward made ready for one backend: fused operations expanded where the backend has no kernel, values
// placed in one arena, operations bound to addresses, executable prepared. Nothing is allocated afterwards.
#pragma once

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
};

class Plan {
 public:
  // Throws Error(kInternal) naming operation and shapes when the backend supports neither an operation nor its
  // expansion, Error(kDevice) when memory is short.
  Plan(Backend& backend, const Recorder& recorded, const PlanOptions& options = {});

  // Copies into an input or kept value / out of a kept value; `bytes` must be the value's size.
  void write(std::string_view name, const void* host, size_t bytes);
  void read(std::string_view name, void* host, size_t bytes) const;
  // Bound view of a named value (device memory). Throws Error(kInternal) when there is none.
  const Tensor& tensor(std::string_view name) const;
  bool has(std::string_view name) const { return named_.find(name) != named_.end(); }

  Status run(OpTimes* times = nullptr) noexcept { return executable_->run(times); }

  // For measurements; see Executable.
  void time_device(bool on) { executable_->time_device(on); }
  std::optional<double> device_us() const { return executable_->device_us(); }
  Status run_pieces(std::span<const size_t> ends, std::span<double> us) noexcept {
    return executable_->run_pieces(ends, us);
  }

  const std::vector<Op>& ops() const { return ops_; }  // bound, in execution order
  size_t arena_bytes() const { return arena_.bytes(); }
  size_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  Backend& backend_;
  std::vector<Op> ops_;
  std::map<std::string, Tensor, std::less<>> named_;
  DeviceBlock arena_, workspace_;
  std::unique_ptr<Executable> executable_;
};

}  // namespace tendon
