// A backend that plans for a card without computing on it: to ask what a plan would run, no weights are needed.
#pragma once

#include <sys/mman.h>

#include <vector>

#include "backend/backend.h"
#include "model/weights/weights.h"

namespace tendon::cli {

// Address space that nobody fills: reads give zeros, and cost no memory.
class ZeroMemory {
 public:
  ZeroMemory() = default;
  ~ZeroMemory() {
    for (const auto& [memory, bytes] : parts_) munmap(memory, bytes);
  }
  ZeroMemory(const ZeroMemory&) = delete;
  ZeroMemory& operator=(const ZeroMemory&) = delete;
  void* take(size_t bytes) {
    const size_t size = bytes == 0 ? 1 : bytes;
    void* const memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw_device("Not enough address space ({} MB).", size >> 20);
    parts_.emplace_back(memory, size);
    return memory;
  }

 private:
  std::vector<std::pair<void*, size_t>> parts_;
};

// Supports what the real backend supports; memory is address space, and plans do nothing.
class ShapeBackend final : public Backend {
 public:
  explicit ShapeBackend(const Backend& real) : real_(real) {}
  std::string_view name() const override { return real_.name(); }
  DeviceInfo info() const override { return real_.info(); }
  bool supports(const Op& op) const override { return real_.supports(op); }
  std::string kernel_name(const Op& op) const override { return real_.kernel_name(op); }
  size_t workspace_bytes(const Op& op) const override { return real_.workspace_bytes(op); }
  std::unique_ptr<Executable> prepare(std::vector<Op>, void*, size_t, const Transfers&) override {
    return std::make_unique<Nothing>();
  }
  void* allocate(size_t bytes) override { return memory_.take(bytes); }
  void release(void*) noexcept override {}
  void upload(void*, const void*, size_t) override {}
  void download(void*, const void*, size_t) override {}
  void fill_zero(void*, size_t) override {}
  bool uses_host_memory() const override { return false; }

 private:
  struct Nothing final : Executable {
    Status run(OpTimes*) noexcept override { return Status::ok(); }
  };
  const Backend& real_;
  ZeroMemory memory_;
};

// Weights of this configuration, all zero.
inline Weights zero_weights(const ModelConfig& config, ZeroMemory& memory) {
  Weights weights;
  visit_weights(weights, config, [&](const WeightSpec& spec, Tensor& tensor) {
    tensor = Tensor(DType::kBf16, spec.shape);
    tensor.data = memory.take(tensor.bytes());
  });
  return weights;
}

}  // namespace tendon::cli
