#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <limits>

#include <omp.h>
#include <sys/mman.h>

#include "backend/cpu/op_table.h"
#include "base/check.h"

namespace tendon {
namespace {

using Clock = std::chrono::steady_clock;

double us_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

// Text after "key ... :" in a file of "key : value" lines, or "".
std::string field_of(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

size_t meminfo_bytes(std::string_view key) {
  return std::strtoull(field_of("/proc/meminfo", key).c_str(), nullptr, 10) * 1024;
}

// Memory that a container leaves us; the largest number without a limit.
size_t container_free_bytes() {
  std::ifstream limit_file("/sys/fs/cgroup/memory.max");
  std::ifstream used_file("/sys/fs/cgroup/memory.current");
  size_t limit = 0;
  size_t used = 0;
  if (!(limit_file >> limit) || !(used_file >> used)) return std::numeric_limits<size_t>::max();
  std::ifstream stat_file("/sys/fs/cgroup/memory.stat");
  std::string key;
  for (size_t value = 0; stat_file >> key >> value;) {
    if (key == "inactive_file") used -= std::min(used, value);  // the page cache gives way
  }
  return limit - std::min(limit, used);
}

size_t free_memory_bytes() { return std::min(meminfo_bytes("MemAvailable"), container_free_bytes()); }

// Sets the number of OpenMP threads of the calling thread for a while.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : outer_(omp_get_max_threads()) {
    if (threads != outer_) omp_set_num_threads(threads);
  }
  ~ThreadScope() { omp_set_num_threads(outer_); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int outer_;
};

class CpuExecutable final : public Executable {
 public:
  CpuExecutable(std::vector<std::unique_ptr<CpuKernel>> kernels, int threads)
      : kernels_(std::move(kernels)), threads_(threads) {}

  Status run(OpTimes* times) noexcept override {
    try {
      const ThreadScope scope(threads_);
      if (times == nullptr) {
        for (const auto& kernel : kernels_) {
          if (Status status = kernel->run(); !status.is_ok()) return status;
        }
        return Status::ok();
      }
      times->start_us.assign(kernels_.size(), 0.0);
      times->duration_us.assign(kernels_.size(), 0.0);
      const Clock::time_point start = Clock::now();
      Clock::time_point before = start;
      for (size_t i = 0; i < kernels_.size(); ++i) {
        if (Status status = kernels_[i]->run(); !status.is_ok()) return status;
        const Clock::time_point after = Clock::now();
        times->start_us[i] = us_between(start, before);
        times->duration_us[i] = us_between(before, after);
        before = after;
      }
      return Status::ok();
    } catch (const std::exception& error) {
      return Status::error(StatusCode::kInternal, "cpu: %s", error.what());
    } catch (...) {
      return Status::error(StatusCode::kInternal, "cpu: unknown exception");
    }
  }

 private:
  std::vector<std::unique_ptr<CpuKernel>> kernels_;
  int threads_;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const BackendOptions& options) {
    if (options.threads < 0) throw_bad_use("{} threads; give 1 or more, or 0 for all cores", options.threads);
    cpu_.threads = options.threads > 0 ? options.threads : omp_get_max_threads();
  }

  std::string_view name() const override { return "cpu"; }

  DeviceInfo info() const override {
    std::string model = field_of("/proc/cpuinfo", "model name");
    return {.name = model.empty() ? "CPU" : model,
            .architecture = cpu_.matmul.isa(),
            .memory_bytes = meminfo_bytes("MemTotal"),
            .free_bytes = free_memory_bytes(),
            .threads_or_sms = cpu_.threads};
  }

  bool supports(const Op& op) const override { return find_cpu_op(op) != nullptr; }
  std::string kernel_name(const Op& op) const override { return row(op).kernel(op, cpu_); }
  size_t workspace_bytes(const Op& op) const override { return row(op).workspace(op, cpu_); }

  std::unique_ptr<Executable> prepare(std::vector<Op> ops, void* workspace, size_t workspace_size,
                                      const Transfers& transfers) override {
    TENDON_CHECK(transfers.inputs.bytes == 0 && transfers.outputs.bytes == 0,
                 "kernels of the cpu backend read host memory: there is nothing to transfer");
    std::vector<std::unique_ptr<CpuKernel>> kernels;
    kernels.reserve(ops.size());
    for (const Op& op : ops) {
      for_each_tensor(op, [&](const char* tensor_name, const Tensor& tensor, Access) {
        TENDON_CHECK(tensor.data != nullptr, "{}: {} is not bound to memory", op_label(op), tensor_name);
      });
      const CpuOp& kind = row(op);
      const size_t need = kind.workspace(op, cpu_);
      TENDON_CHECK(need <= workspace_size, "{} needs {} bytes of workspace, given {}", op_label(op), need,
                   workspace_size);
      kernels.push_back(kind.prepare(op, cpu_, workspace));
    }
    return std::make_unique<CpuExecutable>(std::move(kernels), cpu_.threads);
  }

  void* allocate(size_t bytes) override {
    constexpr size_t kHugePage = size_t{2} << 20;
    const bool large = bytes >= 2 * kHugePage;
    const size_t alignment = large ? kHugePage : 256;
    const size_t size = round_up(std::max<size_t>(bytes, 1), alignment);
    const size_t free = free_memory_bytes();
    void* memory = size < bytes || size > free ? nullptr : std::aligned_alloc(alignment, size);
    if (memory == nullptr) {
      throw_device(
          "Not enough memory: {} MB are needed at once and {} MB are free. Close other programs or use a "
          "smaller model, batch or precision.",
          (bytes >> 20) + 1, free >> 20);
    }
    if (large) madvise(memory, size, MADV_HUGEPAGE);
    return memory;
  }
  void release(void* memory) noexcept override { std::free(memory); }
  void upload(void* device, const void* host, size_t bytes) override {
    if (bytes != 0) std::memcpy(device, host, bytes);
  }
  void download(void* host, const void* device, size_t bytes) override {
    if (bytes != 0) std::memcpy(host, device, bytes);
  }
  void fill_zero(void* device, size_t bytes) override {
    if (bytes != 0) std::memset(device, 0, bytes);
  }
  bool uses_host_memory() const override { return true; }

 private:
  const CpuOp& row(const Op& op) const {
    const CpuOp* found = find_cpu_op(op);
    TENDON_CHECK(found != nullptr, "the cpu backend has no kernel for {} ({})", describe(op), op_label(op));
    return *found;
  }

  mutable CpuContext cpu_;  // primitives are made on demand
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace tendon
