// A libamdhip64 for tests: HIP's calls over the simulated card, with the kernels' own sources at 64 lanes a wave. It
// answers for a kernel only when the code object that was loaded holds it, and refuses what a card would: more threads
// or shared memory than the kernel has, calls that no capture may hold, work in a capture that such a call has spoilt.
// The environment variable TENDON_FAKE_HIP has faults to order: the words of parse_sim_options(), and gfx=950, count=0,
// in-capture=hipMalloc (somebody makes this call in the middle of every capture).
#include "backend/sim/fake_hip.h"

#include <algorithm>
#include <cstdlib>

#include "backend/sim/fake_hip_code.h"
#include "backend/sim/mfma_words.h"
#include "base/check.h"

namespace tendon::sim {

Driver::Driver() {
  const char* const given = std::getenv("TENDON_FAKE_HIP");
  std::string rest;
  std::string_view words = given == nullptr ? "" : given;
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(','));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    if (word.starts_with("gfx=")) {
      architecture = std::atoi(std::string(word.substr(4)).c_str());
    } else if (word.starts_with("count=")) {
      count = std::atoi(std::string(word.substr(6)).c_str());
    } else if (word.starts_with("in-capture=")) {
      intruder = word.substr(11);
    } else {
      rest += (rest.empty() ? "" : ",") + std::string(word);
    }
  }
  options = parse_sim_options(rest);
  simt::reads_fnuz = architecture < 950;
  for (const NamedKernel& kernel : named_kernels()) {
    // "tendon::sim::KernelTag<&(void tendon::gpu::rope_kernel<float>(float const*))>" for a template, for others
    // "tendon::sim::KernelTag<&tendon::gpu::join_kernel>"
    std::string name = demangled(kernel.type);
    name = name.substr(name.find('&') + 1);
    name.resize(name.rfind('>'));
    while (name.ends_with(' ')) name.pop_back();
    if (name.starts_with('(') && name.ends_with(')')) name = name.substr(1, name.size() - 2);
    const auto [at, is_new] = kernels.emplace(name, &kernel);
    if (!is_new && at->second != nullptr && std::string(at->second->type) != kernel.type) at->second = nullptr;
  }
}

gpu::Runtime& Driver::open() {
  if (card == nullptr) card = make_sim_runtime(options);
  return *card;
}

// Never destroyed: the program's own objects may call to the very end.
Driver& driver() {
  static Driver* const the = new Driver;
  return *the;
}

int failed(int code, std::string words) {
  driver().last_code = code;
  driver().last_words = std::move(words);
  return code;
}

namespace {

int spoil(int code, const char* function) {
  driver().lost = true;
  return failed(code, std::string(function) + " while a stream is being captured");
}

}  // namespace

int refused_in_capture(const char* function) {
  return driver().captures_here() ? spoil(kCaptureUnsupported, function) : kSuccess;
}
int refused_beside_capture(const char* function) {
  return driver().capturing ? spoil(kCaptureImplicit, function) : kSuccess;
}

namespace {

struct FakeEvent {
  std::unique_ptr<gpu::Event> event;
  bool captured = false;
};
int refused_for_event(const char* function, const FakeEvent& event) {
  return event.captured && driver().capturing ? spoil(kCapturedEvent, function) : kSuccess;
}

}  // namespace

}  // namespace tendon::sim

using namespace tendon;
using namespace tendon::sim;

FAKE int hipDeviceSynchronize();
FAKE int hipModuleLoadData(void** module, const void* image);
FAKE int hipModuleUnload(void* module);

FAKE int hipGetDeviceCount(int* count) {
  *count = driver().count;
  return *count > 0 ? kSuccess : failed(kNoDevice, "no ROCm-capable device is detected");
}
FAKE int hipSetDevice(int device) {
  return device >= 0 && device < driver().count ? kSuccess : failed(kInvalidDevice, "no such device");
}
FAKE int hipDeviceGetName(char* name, int bytes, int) {
  std::snprintf(name, static_cast<size_t>(bytes), "fake AMD card");
  return kSuccess;
}
FAKE int hipDeviceGetPCIBusId(char* text, int bytes, int) {
  std::snprintf(text, static_cast<size_t>(bytes), "0000:c1:00.0");
  return kSuccess;
}
FAKE int hipDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 23:
      *value = driver().architecture / 100;
      return kSuccess;
    case 61:
      *value = driver().architecture / 10 % 10;
      return kSuccess;
    case 63:
      *value = 2;
      return kSuccess;
    case 74:
      *value = static_cast<int>(driver().shared_bytes());
      return kSuccess;
    default:
      return failed(kInvalidValue, "the fake does not know this attribute");
  }
}
FAKE int hipRuntimeGetVersion(int* version) {
  *version = 70000000;
  return kSuccess;
}
FAKE int hipDriverGetVersion(int* version) { return hipRuntimeGetVersion(version); }
FAKE int hipMemGetInfo(size_t* free, size_t* total) {
  return guarded([&](gpu::Runtime& card) {
    const DeviceInfo info = card.info();
    *free = info.free_bytes;
    *total = info.memory_bytes;
    return kSuccess;
  });
}
FAKE int hipGetLastError() { return std::exchange(driver().last_code, kSuccess); }
FAKE const char* hipGetErrorName(int code) {
  static thread_local std::string name;
  name = "fake hipError " + std::to_string(code);
  return name.c_str();
}
FAKE const char* hipGetErrorString(int) { return driver().last_words.c_str(); }

FAKE int hipMalloc(void** memory, size_t bytes) {
  if (const int code = refused_in_capture("hipMalloc")) return code;
  return guarded([&](gpu::Runtime& card) {
    *memory = card.allocate(bytes);
    return *memory != nullptr ? kSuccess : failed(kOutOfMemory, "out of memory");
  });
}
FAKE int hipFree(void* memory) {
  if (const int code = refused_in_capture("hipFree")) return code;
  if (driver().card != nullptr) driver().card->release(memory);
  return kSuccess;
}
FAKE int hipHostMalloc(void** memory, size_t bytes, unsigned) {
  if (const int code = refused_in_capture("hipHostMalloc")) return code;
  return guarded([&](gpu::Runtime& card) {
    *memory = card.allocate_host(bytes);
    return *memory != nullptr ? kSuccess : failed(kOutOfMemory, "out of memory");
  });
}
FAKE int hipHostFree(void* memory) {
  if (const int code = refused_in_capture("hipHostFree")) return code;
  if (driver().card != nullptr) driver().card->release_host(memory);
  return kSuccess;
}
FAKE int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  return enqueue("hipMemcpyAsync", stream, [&](gpu::Runtime& card) {
    if (kind == 1) {
      card.copy_to_device(to, from, bytes);
    } else {
      card.copy_to_host(to, from, bytes);
    }
    return kSuccess;
  });
}
FAKE int hipMemsetAsync(void* memory, int value, size_t bytes, void* stream) {
  if (value != 0) return failed(kInvalidValue, "the fake only clears memory");
  return enqueue("hipMemsetAsync", stream, [&](gpu::Runtime& card) {
    card.fill_zero(memory, bytes);
    return kSuccess;
  });
}
FAKE int hipMemcpy(void* to, const void* from, size_t bytes, int kind) {
  if (const int code = refused_beside_capture("hipMemcpy")) return code;
  const int code = hipMemcpyAsync(to, from, bytes, kind, driver().open().stream());
  return code != kSuccess ? code : hipDeviceSynchronize();
}
FAKE int hipMemset(void* memory, int value, size_t bytes) {
  if (const int code = refused_beside_capture("hipMemset")) return code;
  const int code = hipMemsetAsync(memory, value, bytes, driver().open().stream());
  return code != kSuccess ? code : hipDeviceSynchronize();
}

FAKE int hipStreamCreateWithFlags(void** stream, unsigned) {
  return guarded([&](gpu::Runtime& card) {
    *stream = card.stream();
    return kSuccess;
  });
}
FAKE int hipStreamDestroy(void*) { return kSuccess; }
FAKE int hipStreamSynchronize(void*) {
  if (const int code = refused_in_capture("hipStreamSynchronize")) return code;
  return guarded([](gpu::Runtime& card) {
    card.synchronize();
    return kSuccess;
  });
}
FAKE int hipStreamQuery(void* stream) { return hipStreamSynchronize(stream); }  // work is done by the time one asks
FAKE int hipDeviceSynchronize() {
  if (driver().capturing) return spoil(kCaptureUnsupported, "hipDeviceSynchronize");
  return hipStreamSynchronize(nullptr);
}
FAKE int hipStreamBeginCapture(void*, int mode) {
  if (mode != 1) return failed(kInvalidValue, "captures are to be of this thread's work only");
  if (driver().capturing) return failed(kIllegalState, "the stream is being captured already");
  return guarded([](gpu::Runtime& card) {
    card.begin_capture();
    driver().capturing = true;
    driver().lost = false;
    driver().capturing_thread = std::this_thread::get_id();
    driver().recorded = 0;
    return kSuccess;
  });
}
FAKE int hipStreamEndCapture(void*, void** graph) {
  *graph = nullptr;
  driver().capturing = false;
  return guarded([&](gpu::Runtime& card) {
    if (driver().lost) {
      card.abandon_capture();
      return failed(kCaptureInvalidated, "the capture was spoilt by an earlier call");
    }
    *graph = card.end_capture().release();
    return kSuccess;
  });
}
FAKE int hipStreamIsCapturing(void*, int* status) {
  *status = !driver().capturing ? 0 : driver().lost ? 2 : 1;
  return kSuccess;
}
FAKE int hipGraphInstantiate(void** exec, void* graph, void**, char*, size_t) {
  if (graph == nullptr) return failed(kInvalidValue, "no graph");
  *exec = graph;
  return kSuccess;
}
FAKE int hipGraphUpload(void* exec, void*) { return exec != nullptr ? kSuccess : failed(kInvalidValue, "no graph"); }
FAKE int hipGraphLaunch(void* exec, void* stream) {
  return guarded([&](gpu::Runtime&) {
    static_cast<gpu::Graph*>(exec)->launch(static_cast<gpu::Stream>(stream));
    return kSuccess;
  });
}
FAKE int hipGraphExecDestroy(void* exec) {
  delete static_cast<gpu::Graph*>(exec);
  return kSuccess;
}
FAKE int hipGraphDestroy(void*) { return kSuccess; }  // the executable one goes on with it

FAKE int hipEventCreate(void** event) {
  return guarded([&](gpu::Runtime& card) {
    *event = new FakeEvent{card.make_event()};
    return kSuccess;
  });
}
FAKE int hipEventDestroy(void* event) {
  delete static_cast<FakeEvent*>(event);
  return kSuccess;
}
FAKE int hipEventRecord(void* event, void* stream) {
  return enqueue("hipEventRecord", stream, [&](gpu::Runtime& card) {
    auto& fake = *static_cast<FakeEvent*>(event);
    fake.captured = driver().captures_here();
    card.record(*fake.event);
    return kSuccess;
  });
}
FAKE int hipEventQuery(void* event) {
  if (const int code = refused_for_event("hipEventQuery", *static_cast<FakeEvent*>(event))) return code;
  return kSuccess;
}
FAKE int hipEventSynchronize(void* event) {
  if (const int code = refused_for_event("hipEventSynchronize", *static_cast<FakeEvent*>(event))) return code;
  return hipDeviceSynchronize();
}
FAKE int hipEventElapsedTime(float* ms, void* from, void* to) {
  return guarded([&](gpu::Runtime& card) {
    *ms = static_cast<float>(
        card.elapsed_us(*static_cast<FakeEvent*>(from)->event, *static_cast<FakeEvent*>(to)->event) / 1e3);
    return kSuccess;
  });
}

// --- the call in the middle of captures that in-capture=NAME orders
// ----------------------------------------------------

namespace {

void query_event(int (*query)(void*)) {
  void* event = nullptr;
  hipEventCreate(&event);
  hipEventRecord(event, driver().open().stream());
  query(event);
  hipEventDestroy(event);
}
struct Intruder {
  const char* name;
  void (*call)();
};
void* memory = nullptr;
constexpr Intruder kIntruders[] = {
    {"hipMalloc", [] { hipMalloc(&memory, 256); }},
    {"hipFree", [] { hipFree(memory); }},
    {"hipHostMalloc", [] { hipHostMalloc(&memory, 256, 0); }},
    {"hipHostFree", [] { hipHostFree(memory); }},
    {"hipMemcpy", [] { hipMemcpy(memory, memory, 0, 1); }},
    {"hipMemset", [] { hipMemset(memory, 0, 0); }},
    {"hipStreamSynchronize", [] { hipStreamSynchronize(driver().open().stream()); }},
    {"hipStreamQuery", [] { hipStreamQuery(driver().open().stream()); }},
    {"hipDeviceSynchronize", [] { hipDeviceSynchronize(); }},
    {"hipEventQuery", [] { query_event(hipEventQuery); }},
    {"hipEventSynchronize", [] { query_event(hipEventSynchronize); }},
    {"hipModuleLoadData", [] { hipModuleLoadData(&memory, nullptr); }},
    {"hipModuleUnload", [] { hipModuleUnload(nullptr); }},
    {"legacy-stream", [] { hipMemsetAsync(memory, 0, 0, nullptr); }},
};

}  // namespace

void tendon::sim::intrude() {
  constexpr int kAfter = 3;  // pieces of work
  if (driver().recorded != kAfter || driver().intruder.empty()) return;
  const std::string name = std::exchange(driver().intruder, "");  // not again within the call
  const auto* const found = std::ranges::find(kIntruders, name, &Intruder::name);
  if (found == std::end(kIntruders)) throw_bad_use("TENDON_FAKE_HIP: in-capture={}: this call is not known", name);
  found->call();
  driver().intruder = name;
}
