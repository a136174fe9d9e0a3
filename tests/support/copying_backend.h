// The CPU's kernels behind the interface of a device with memory of its own: values reach it only by copies, which are
// counted. What a run copies stands in its transfers.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/registry.h"

namespace tendon::test {

class CopyingBackend final : public Backend {
 public:
  int allocations = 0, releases = 0, host_allocations = 0, host_releases = 0;
  int uploads = 0, downloads = 0, prepared = 0, runs = 0;
  size_t uploaded_bytes = 0;
  Transfers transfers;        // of the last executable
  size_t last_workspace = 0;  // bytes that it was given
  void* workspace = nullptr;  // and where

  std::string_view name() const override { return "copying"; }
  DeviceInfo info() const override { return cpu_->info(); }
  bool supports(const Op& op) const override { return cpu_->supports(op); }
  std::string kernel_name(const Op& op) const override { return cpu_->kernel_name(op); }
  size_t workspace_bytes(const Op& op) const override { return cpu_->workspace_bytes(op); }
  std::unique_ptr<Executable> prepare(std::vector<Op> ops, void* memory, size_t bytes,
                                      const Transfers& copies) override {
    ++prepared;
    transfers = copies;
    workspace = memory;
    last_workspace = bytes;
    return std::make_unique<Run>(*this, cpu_->prepare(std::move(ops), memory, bytes, {}), copies);
  }
  void* allocate(size_t bytes) override { return ++allocations, cpu_->allocate(bytes); }
  void release(void* memory) noexcept override { ++releases, cpu_->release(memory); }
  void upload(void* device, const void* host, size_t bytes) override {
    ++uploads;
    uploaded_bytes += bytes;
    cpu_->upload(device, host, bytes);
  }
  void download(void* host, const void* device, size_t bytes) override {
    ++downloads;
    cpu_->download(host, device, bytes);
  }
  void fill_zero(void* device, size_t bytes) override { cpu_->fill_zero(device, bytes); }
  void* allocate_host(size_t bytes) override {
    ++host_allocations;
    void* const memory = Backend::allocate_host(bytes);
    std::memset(memory, 0xee, bytes);  // nobody may rely on what was there
    return memory;
  }
  void release_host(void* memory) noexcept override { ++host_releases, Backend::release_host(memory); }
  bool uses_host_memory() const override { return false; }

 private:
  struct Run final : Executable {
    Run(CopyingBackend& backend, std::unique_ptr<Executable> kernels, const Transfers& copies)
        : owner(backend), inner(std::move(kernels)), transfers(copies) {}
    Status run(OpTimes* times) noexcept override {
      ++owner.runs;
      copy(transfers.inputs.device, transfers.inputs.host, transfers.inputs.bytes);
      Status status = inner->run(times);
      copy(transfers.outputs.host, transfers.outputs.device, transfers.outputs.bytes);
      return status;
    }
    static void copy(void* to, const void* from, size_t bytes) {
      if (bytes > 0) std::memcpy(to, from, bytes);
    }
    CopyingBackend& owner;
    std::unique_ptr<Executable> inner;
    Transfers transfers;
  };

  std::unique_ptr<Backend> cpu_ = make_backend("cpu");
};

}  // namespace tendon::test
