#include "backend/cuda/cuda_runtime.h"

#include <fmt/format.h>

#include "backend/cuda/card_limits.h"
#include "backend/cuda/cupti.h"
#include "backend/cuda/nvml.h"
#include "base/check.h"

namespace tendon {

namespace gpu {

void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky must not turn up in a later call
  throw_device("{} failed: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

void require_launch(cudaError_t status, const void* kernel, const cudaLaunchConfig_t& config) {
  if (status == cudaSuccess) return;
  const char* name = nullptr;
  if (cudaFuncGetName(&name, kernel) != cudaSuccess || name == nullptr) name = "?";
  const std::string what = fmt::format(
      "launching kernel {} ({} × {} × {} blocks of {} × {} threads, {} bytes of shared memory)", name, config.gridDim.x,
      config.gridDim.y, config.gridDim.z, config.blockDim.x, config.blockDim.y, config.dynamicSmemBytes);
  require(status, what.c_str());
}

}  // namespace gpu

namespace {

using gpu::require;

class CudaGraph final : public gpu::Graph {
 public:
  CudaGraph(cudaGraph_t captured, cudaStream_t stream, gpu::Counters& counters) : counters_(counters) {
    cudaGraphGetNodes(captured, nullptr, &size_);
    const cudaError_t status = cudaGraphInstantiate(&executable_, captured, 0);
    cudaGraphDestroy(captured);
    require(status, "making the graph");
    const cudaError_t uploaded = cudaGraphUpload(executable_, stream);
    if (uploaded != cudaSuccess) cudaGraphExecDestroy(executable_);
    require(uploaded, "uploading the graph");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  std::optional<size_t> size() const override { return size_; }
  void launch(gpu::Stream stream) override {
    ++counters_.graph_launches;
    require(cudaGraphLaunch(executable_, cuda_stream(stream)), "launching the graph");
  }

 private:
  gpu::Counters& counters_;
  cudaGraphExec_t executable_ = nullptr;
  size_t size_ = 0;
};

class CudaEvent final : public gpu::Event {
 public:
  CudaEvent() { require(cudaEventCreate(&event_), "making an event"); }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

cudaEvent_t cuda_event(const gpu::Event& event) { return static_cast<const CudaEvent&>(event).get(); }

class CudaHalfStreams final : public gpu::HalfStreams {
 public:
  CudaHalfStreams(PreferredHalf preferred, gpu::Counters& counters) : counters_(counters) {
    int lowest = 0;
    int highest = 0;
    require(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "reading the priorities of streams");
    const auto make = [&](Owned& stream, bool first) {
      require(cudaStreamCreateWithPriority(&stream.handle, cudaStreamNonBlocking, first ? highest : lowest),
              "making a stream");
    };
    make(front_, false);
    make(back_, preferred == PreferredHalf::kBack);
  }

  void launch(gpu::Graph& front, gpu::Graph& back, gpu::Event& front_end, gpu::Event& back_end) override {
    try {
      front.launch(reinterpret_cast<gpu::Stream>(front_.handle));
      require(cudaEventRecord(cuda_event(front_end), front_.handle), "recording an event");
      require(cudaStreamWaitEvent(back_.handle, cuda_event(front_end), 0), "ordering two streams");
      back.launch(reinterpret_cast<gpu::Stream>(back_.handle));
      require(cudaEventRecord(cuda_event(back_end), back_.handle), "recording an event");
    } catch (const Error&) {
      cudaStreamSynchronize(front_.handle);
      cudaStreamSynchronize(back_.handle);
      throw;
    }
  }
  void wait(const gpu::Event& back_end) override {
    ++counters_.synchronisations;
    require(cudaEventSynchronize(cuda_event(back_end)), "waiting for the card");
  }

 private:
  struct Owned {
    Owned() = default;
    ~Owned() {
      if (handle != nullptr) cudaStreamDestroy(handle);
    }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    cudaStream_t handle = nullptr;
  };

  gpu::Counters& counters_;
  Owned front_, back_;
};

std::string pci_bus_id(int device) {
  char text[32] = {};
  require(cudaDeviceGetPCIBusId(text, sizeof(text), device), "reading the card's bus address");
  return text;
}

// "CUDA 13.0, driver for 13.0": what the program was built with, and the newest that the driver knows.
std::string runtime_versions() {
  int runtime = 0;
  int driver = 0;
  require(cudaRuntimeGetVersion(&runtime), "reading the runtime's version");
  require(cudaDriverGetVersion(&driver), "reading the driver's version");
  return fmt::format("CUDA {}.{}, driver for {}.{}", runtime / 1000, runtime % 1000 / 10, driver / 1000,
                     driver % 1000 / 10);
}

class CudaRuntime final : public gpu::Runtime {
 public:
  explicit CudaRuntime(int device) : device_(device), nvml_(pci_bus_id(device)) {
    make_current();
    int major = 0;
    int minor = 0;
    require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "reading the card's type");
    require(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "reading the card's type");
    architecture_ = 10 * major + minor;
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }
  ~CudaRuntime() override { cudaStreamDestroy(stream_); }
  CudaRuntime(const CudaRuntime&) = delete;
  CudaRuntime& operator=(const CudaRuntime&) = delete;

  DeviceInfo info() const override {
    cudaDeviceProp properties{};
    require(cudaGetDeviceProperties(&properties, device_), "reading the card's properties");
    require(cudaSetDevice(device_), "choosing the card");
    size_t free_bytes = 0;
    size_t total = 0;
    require(cudaMemGetInfo(&free_bytes, &total), "reading the card's memory");
    return {.name = properties.name,
            .architecture = fmt::format("sm_{}", architecture_),
            .driver = nvml_.driver_version(),
            .runtime = runtime_versions(),
            .memory_bytes = total,
            .free_bytes = free_bytes,
            .threads_or_sms = properties.multiProcessorCount,
            .limits = card_limits(properties.name)};
  }
  DeviceSensors sensors() const override { return nvml_.read(); }
  int architecture() const override { return architecture_; }
  size_t shared_bytes_per_block() const override {
    int bytes = 0;
    require(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_),
            "reading the card's shared memory");
    return static_cast<size_t>(bytes);
  }
  gpu::Stream stream() const override { return reinterpret_cast<gpu::Stream>(stream_); }
  void make_current() override { require(cudaSetDevice(device_), "choosing the card"); }

  void* allocate(size_t bytes) override {
    make_current();
    ++counters_.allocations;
    void* memory = nullptr;
    return got(cudaMalloc(&memory, bytes), "allocating device memory") ? memory : nullptr;
  }
  void release(void* memory) noexcept override { cudaFree(memory); }
  void* allocate_host(size_t bytes) override {
    make_current();
    ++counters_.host_allocations;
    void* memory = nullptr;
    return got(cudaMallocHost(&memory, bytes), "allocating pinned host memory") ? memory : nullptr;
  }
  void release_host(void* memory) noexcept override { cudaFreeHost(memory); }

  void copy_to_device(void* device, const void* host, size_t bytes) override {
    make_current();
    require(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "copying to the card");
  }
  void copy_to_host(void* host, const void* device, size_t bytes) override {
    make_current();
    require(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "copying from the card");
  }
  void fill_zero(void* device, size_t bytes) override {
    make_current();
    require(cudaMemsetAsync(device, 0, bytes, stream_), "clearing device memory");
  }
  void synchronize() override {
    ++counters_.synchronisations;
    require(cudaStreamSynchronize(stream_), "waiting for the card");
  }

  void begin_capture() override {
    make_current();
    ++counters_.captures;
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "beginning capture");
  }
  std::unique_ptr<gpu::Graph> end_capture() override {
    cudaGraph_t captured = nullptr;
    require(cudaStreamEndCapture(stream_, &captured), "ending capture");
    ++counters_.instantiations;
    return std::make_unique<CudaGraph>(captured, stream_, counters_);
  }
  void abandon_capture() noexcept override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream_, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
      cudaGraph_t captured = nullptr;
      cudaStreamEndCapture(stream_, &captured);
      if (captured != nullptr) cudaGraphDestroy(captured);
    }
    cudaGetLastError();
  }

  std::unique_ptr<gpu::Event> make_event() override { return std::make_unique<CudaEvent>(); }
  void record(gpu::Event& event) override {
    require(cudaEventRecord(cuda_event(event), stream_), "recording an event");
  }
  double elapsed_us(const gpu::Event& from, const gpu::Event& to) override {
    float ms = 0;
    require(cudaEventElapsedTime(&ms, cuda_event(from), cuda_event(to)), "reading an event");
    return static_cast<double>(ms) * 1e3;
  }
  std::unique_ptr<gpu::HalfStreams> make_half_streams(PreferredHalf preferred) override {
    make_current();
    return std::make_unique<CudaHalfStreams>(preferred, counters_);
  }
  TracerOrReason make_tracer() override { return make_cupti_tracer(); }

 private:
  // False when memory is short.
  static bool got(cudaError_t status, const char* what) {
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return false;
    }
    require(status, what);
    return true;
  }

  int device_;
  Nvml nvml_;
  int architecture_ = 0;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<gpu::Runtime> make_cuda_runtime(int device) { return std::make_unique<CudaRuntime>(device); }

}  // namespace tendon
