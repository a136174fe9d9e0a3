#include "backend/hip/runtime.h"

#include <cstdlib>

#include "backend/hip/amd_smi.h"
#include "backend/hip/modules.h"
#include "base/check.h"

namespace tendon::hip {
namespace {

StreamHandle hip_stream(gpu::Stream stream) { return reinterpret_cast<StreamHandle>(stream); }

class HipGraph final : public gpu::Graph {
 public:
  HipGraph(const Library& hip, GraphHandle captured, StreamHandle stream, gpu::Counters& counters)
      : hip_(hip), counters_(counters) {
    const Error status = hip.hipGraphInstantiate(&executable_, captured, nullptr, nullptr, 0);
    hip.hipGraphDestroy(captured);
    hip.require(status, "making the graph");
    if (hip.hipGraphUpload == nullptr) return;
    const Error uploaded = hip.hipGraphUpload(executable_, stream);
    if (uploaded != kSuccess) hip.hipGraphExecDestroy(executable_);
    hip.require(uploaded, "uploading the graph");
  }
  ~HipGraph() override { hip_.hipGraphExecDestroy(executable_); }
  HipGraph(const HipGraph&) = delete;
  HipGraph& operator=(const HipGraph&) = delete;

  void launch(gpu::Stream stream) override {
    ++counters_.graph_launches;
    hip_.require(hip_.hipGraphLaunch(executable_, hip_stream(stream)), "launching the graph");
  }

 private:
  const Library& hip_;
  gpu::Counters& counters_;
  ExecHandle executable_ = nullptr;
};

class HipEvent final : public gpu::Event {
 public:
  explicit HipEvent(const Library& hip) : hip_(hip) { hip.require(hip.hipEventCreate(&event_), "making an event"); }
  ~HipEvent() override { hip_.hipEventDestroy(event_); }
  HipEvent(const HipEvent&) = delete;
  HipEvent& operator=(const HipEvent&) = delete;
  EventHandle get() const { return event_; }

 private:
  const Library& hip_;
  EventHandle event_ = nullptr;
};

EventHandle hip_event(const gpu::Event& event) { return static_cast<const HipEvent&>(event).get(); }

// 60443483 for 6.4.43483.
std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000000, version / 100000 % 100, version % 100000);
}

std::string pci_bus_id(const Library& hip, int device) {
  char text[32] = {};
  hip.require(hip.hipDeviceGetPCIBusId(text, sizeof(text), device), "reading the card's bus address");
  return text;
}

class HipRuntime final : public gpu::Runtime {
 public:
  explicit HipRuntime(int device)
      : hip_(*library()),
        device_(device),
        architecture_(architecture_of(hip_, device)),
        smi_(pci_bus_id(hip_, device)) {
    hip_.require(hip_.hipSetDevice(device_), "choosing the card");
    load_modules(device_, fmt::format("gfx{}", architecture_));
    make_current();
    hip_.require(hip_.hipStreamCreateWithFlags(&stream_, kStreamNonBlocking), "making a stream");
  }
  ~HipRuntime() override { hip_.hipStreamDestroy(stream_); }
  HipRuntime(const HipRuntime&) = delete;
  HipRuntime& operator=(const HipRuntime&) = delete;

  DeviceInfo info() const override {
    hip_.require(hip_.hipSetDevice(device_), "choosing the card");
    size_t free_bytes = 0;
    size_t total = 0;
    hip_.require(hip_.hipMemGetInfo(&free_bytes, &total), "reading the card's memory");
    int driver = 0;
    int runtime = 0;
    int multiprocessors = 0;
    hip_.require(hip_.hipDriverGetVersion(&driver), "reading the driver's version");
    hip_.require(hip_.hipRuntimeGetVersion(&runtime), "reading the runtime's version");
    hip_.require(hip_.hipDeviceGetAttribute(&multiprocessors, kMultiprocessors, device_), "reading the card's type");
    return {.name = card_name(hip_, device_),
            .architecture = fmt::format("gfx{}", architecture_),
            .driver = version_text(driver),
            .runtime = fmt::format("HIP {} ({})", version_text(runtime), hip_.file),
            .memory_bytes = total,
            .free_bytes = free_bytes,
            .threads_or_sms = multiprocessors};
  }
  DeviceSensors sensors() const override { return smi_.read(); }
  int architecture() const override { return architecture_; }
  size_t shared_bytes_per_block() const override {
    int bytes = 0;
    hip_.require(hip_.hipDeviceGetAttribute(&bytes, kSharedBytesPerBlock, device_), "reading the card's shared memory");
    return static_cast<size_t>(bytes);
  }
  gpu::Stream stream() const override { return reinterpret_cast<gpu::Stream>(stream_); }
  void make_current() override {
    hip_.require(hip_.hipSetDevice(device_), "choosing the card");
    set_launch_device(device_);
  }

  void* allocate(size_t bytes) override {
    make_current();
    ++counters_.allocations;
    void* memory = nullptr;
    return got(hip_.hipMalloc(&memory, bytes), "allocating device memory") ? memory : nullptr;
  }
  void release(void* memory) noexcept override { hip_.hipFree(memory); }
  void* allocate_host(size_t bytes) override {
    make_current();
    ++counters_.host_allocations;
    void* memory = nullptr;
    return got(hip_.hipHostMalloc(&memory, bytes, 0), "allocating pinned host memory") ? memory : nullptr;
  }
  void release_host(void* memory) noexcept override { hip_.hipHostFree(memory); }

  void copy_to_device(void* device, const void* host, size_t bytes) override {
    make_current();
    hip_.require(hip_.hipMemcpyAsync(device, host, bytes, kHostToDevice, stream_), "copying to the card");
  }
  void copy_to_host(void* host, const void* device, size_t bytes) override {
    make_current();
    hip_.require(hip_.hipMemcpyAsync(host, device, bytes, kDeviceToHost, stream_), "copying from the card");
  }
  void fill_zero(void* device, size_t bytes) override {
    make_current();
    hip_.require(hip_.hipMemsetAsync(device, 0, bytes, stream_), "clearing device memory");
  }
  void synchronize() override {
    ++counters_.synchronisations;
    hip_.require(hip_.hipStreamSynchronize(stream_), "waiting for the card");
  }

  // One chain of work on one stream; what kernels need has been allocated before.
  void begin_capture() override {
    make_current();
    ++counters_.captures;
    hip_.require(hip_.hipStreamBeginCapture(stream_, kCaptureThreadLocal), "beginning capture");
  }
  std::unique_ptr<gpu::Graph> end_capture() override {
    GraphHandle captured = nullptr;
    hip_.require(hip_.hipStreamEndCapture(stream_, &captured), "ending capture");
    ++counters_.instantiations;
    return std::make_unique<HipGraph>(hip_, captured, stream_, counters_);
  }
  void abandon_capture() noexcept override {
    int status = 0;  // not capturing
    if (hip_.hipStreamIsCapturing(stream_, &status) == kSuccess && status != 0) {
      GraphHandle captured = nullptr;
      hip_.hipStreamEndCapture(stream_, &captured);
      if (captured != nullptr) hip_.hipGraphDestroy(captured);
    }
    hip_.hipGetLastError();
  }

  std::unique_ptr<gpu::Event> make_event() override { return std::make_unique<HipEvent>(hip_); }
  void record(gpu::Event& event) override {
    hip_.require(hip_.hipEventRecord(hip_event(event), stream_), "recording an event");
  }
  double elapsed_us(const gpu::Event& from, const gpu::Event& to) override {
    float ms = 0;
    hip_.require(hip_.hipEventElapsedTime(&ms, hip_event(from), hip_event(to)), "reading an event");
    return static_cast<double>(ms) * 1e3;
  }

  TracerOrReason make_tracer() override {
    return {.reason = "kernels of AMD cards are not traced yet (that takes ROCm's rocprofiler-sdk)"};
  }

 private:
  // False when memory is short.
  bool got(Error status, const char* what) const {
    if (status == kOutOfMemory) {
      hip_.hipGetLastError();
      return false;
    }
    hip_.require(status, what);
    return true;
  }

  const Library& hip_;
  int device_;
  int architecture_;
  AmdSmi smi_;
  StreamHandle stream_ = nullptr;
};

}  // namespace

int architecture_of(const Library& hip, int device) {
  int major = 0;
  int minor = 0;
  hip.require(hip.hipDeviceGetAttribute(&major, kComputeMajor, device), "reading a card's type");
  hip.require(hip.hipDeviceGetAttribute(&minor, kComputeMinor, device), "reading a card's type");
  if (major == 9 && minor == 4) return 942;
  if (major == 9 && minor == 5) return 950;
  return 100 * major + 10 * minor;
}

std::string card_name(const Library& hip, int device) {
  char name[256] = {};
  hip.require(hip.hipDeviceGetName(name, sizeof(name), device), "reading a card's name");
  return name;
}

std::unique_ptr<gpu::Runtime> make_hip_runtime(int device) { return std::make_unique<HipRuntime>(device); }

}  // namespace tendon::hip
