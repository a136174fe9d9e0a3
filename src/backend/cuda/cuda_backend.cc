#include "backend/cuda/cuda_backend.h"

#include <fmt/format.h>

#include "backend/cuda/op_table.h"
#include "base/check.h"

namespace tendon {

namespace gpu {

void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw_device("{} failed: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace gpu

namespace {

using gpu::require;

class CudaBackend;

// The operations as one captured graph; run one by one, with events between them, when times are asked for.
class CudaExecutable final : public Executable {
 public:
  CudaExecutable(const std::vector<Op>& ops, const CublasLt& gemm, void* workspace, cudaStream_t stream)
      : stream_(stream) {
    const CudaContext context{.gemm = gemm,
                              .workspace = workspace,
                              .allocate =
                                  [this](size_t bytes) {
                                    void* memory = nullptr;
                                    require(cudaMalloc(&memory, bytes), "allocating a small buffer");
                                    buffers_.push_back(memory);
                                    return memory;
                                  },
                              .stream = stream};
    for (const Op& op : ops) {
      const CudaOp* const row = find_cuda_op(op);
      TENDON_CHECK(row != nullptr, "the cuda backend has no kernel for {} ({})", describe(op), op_label(op));
      launches_.push_back(row->prepare(op, context));
    }
    require(cudaStreamSynchronize(stream), "preparing the plan");
    for (const Launch& launch : launches_) launch(stream);  // first launches load kernels, which capture must not do
    require(cudaGetLastError(), "launching the plan's kernels");
    require(cudaStreamSynchronize(stream), "running the plan once");
    capture();
  }

  ~CudaExecutable() override {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    for (void* buffer : buffers_) cudaFree(buffer);
  }

  Status run(OpTimes* times) noexcept override {
    try {
      if (times != nullptr) return run_timed(*times);
      const cudaError_t launched = cudaGraphLaunch(graph_, stream_);
      if (launched != cudaSuccess) return failed("launching the graph", launched);
      return finished();
    } catch (const std::exception& error) {
      return Status::error(StatusCode::kDevice, "cuda: %s", error.what());
    }
  }

 private:
  static Status failed(const char* what, cudaError_t error) {
    return Status::error(StatusCode::kDevice, "cuda: %s failed: %s", what, cudaGetErrorString(error));
  }
  Status finished() const {
    const cudaError_t status = cudaStreamSynchronize(stream_);
    return status == cudaSuccess ? Status::ok() : failed("running the plan", status);
  }

  void capture() {
    cudaGraph_t captured = nullptr;
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "beginning capture");
    for (const Launch& launch : launches_) launch(stream_);
    require(cudaStreamEndCapture(stream_, &captured), "ending capture");
    const cudaError_t status = cudaGraphInstantiate(&graph_, captured, 0);
    cudaGraphDestroy(captured);
    require(status, "making the graph");
    require(cudaGraphUpload(graph_, stream_), "uploading the graph");
    require(cudaStreamSynchronize(stream_), "uploading the graph");
  }

  Status run_timed(OpTimes& times) {
    while (events_.size() < launches_.size() + 1) {
      cudaEvent_t event = nullptr;
      require(cudaEventCreate(&event), "making an event");
      events_.push_back(event);
    }
    require(cudaEventRecord(events_[0], stream_), "recording an event");
    for (size_t i = 0; i < launches_.size(); ++i) {
      launches_[i](stream_);
      require(cudaEventRecord(events_[i + 1], stream_), "recording an event");
    }
    if (Status status = finished(); !status.is_ok()) return status;
    times.start_us.assign(launches_.size(), 0.0);
    times.duration_us.assign(launches_.size(), 0.0);
    for (size_t i = 0; i < launches_.size(); ++i) {
      float start_ms = 0;
      float ms = 0;
      require(cudaEventElapsedTime(&start_ms, events_[0], events_[i]), "reading an event");
      require(cudaEventElapsedTime(&ms, events_[i], events_[i + 1]), "reading an event");
      times.start_us[i] = static_cast<double>(start_ms) * 1e3;
      times.duration_us[i] = static_cast<double>(ms) * 1e3;
    }
    return Status::ok();
  }

  cudaStream_t stream_;
  std::vector<Launch> launches_;
  std::vector<void*> buffers_;
  std::vector<cudaEvent_t> events_;
  cudaGraphExec_t graph_ = nullptr;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int device) : device_(device) {
    require(cudaSetDevice(device), "choosing the card");
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }
  ~CudaBackend() override { cudaStreamDestroy(stream_); }

  std::string_view name() const override { return "cuda"; }
  DeviceInfo info() const override {
    cudaDeviceProp properties{};
    require(cudaGetDeviceProperties(&properties, device_), "reading the card's properties");
    size_t free_bytes = 0;
    size_t total = 0;
    require(cudaMemGetInfo(&free_bytes, &total), "reading the card's memory");
    return {.name = properties.name,
            .architecture = fmt::format("sm_{}{}", properties.major, properties.minor),
            .memory_bytes = total,
            .free_bytes = free_bytes,
            .threads_or_sms = properties.multiProcessorCount};
  }

  bool supports(const Op& op) const override { return find_cuda_op(op) != nullptr; }
  std::string kernel_name(const Op& op) const override { return row(op).kernel; }
  size_t workspace_bytes(const Op& op) const override { return row(op).workspace_bytes(op); }
  std::unique_ptr<Executable> prepare(std::vector<Op> ops, void* workspace, size_t) override {
    return std::make_unique<CudaExecutable>(ops, gemm_, workspace, stream_);
  }

  void* allocate(size_t bytes) override {
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw_device(
          "Not enough memory on the card: {} MB are needed at once and {} MB are free. Close other programs on it, or "
          "use a smaller batch.",
          (bytes >> 20) + 1, info().free_bytes >> 20);
    }
    require(status, "allocating device memory");
    return memory;
  }
  void release(void* memory) noexcept override { cudaFree(memory); }
  void upload(void* device, const void* host, size_t bytes) override {
    require(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "copying to the card");
    require(cudaStreamSynchronize(stream_), "copying to the card");
  }
  void download(void* host, const void* device, size_t bytes) override {
    require(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "copying from the card");
    require(cudaStreamSynchronize(stream_), "copying from the card");
  }
  void fill_zero(void* device, size_t bytes) override {
    require(cudaMemsetAsync(device, 0, bytes, stream_), "clearing device memory");
    require(cudaStreamSynchronize(stream_), "clearing device memory");
  }
  bool uses_host_memory() const override { return false; }

 private:
  const CudaOp& row(const Op& op) const {
    const CudaOp* const found = find_cuda_op(op);
    TENDON_CHECK(found != nullptr, "the cuda backend has no kernel for {} ({})", describe(op), op_label(op));
    return *found;
  }

  int device_;
  cudaStream_t stream_ = nullptr;
  CublasLt gemm_;
};

}  // namespace

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    throw_device("No usable NVIDIA card: {}. Check the driver with nvidia-smi, or choose --backend cpu.",
                 status == cudaSuccess ? "none is visible" : cudaGetErrorString(status));
  }
  if (options.device < 0 || options.device >= count)
    throw_device("There is no card {}; this machine has {} (0 to {}).", options.device, count, count - 1);
  return std::make_unique<CudaBackend>(options.device);
}

}  // namespace tendon
