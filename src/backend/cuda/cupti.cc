#include "backend/cuda/cupti.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include <fmt/format.h>

#include "base/check.h"

namespace tendon {
namespace {

// The library's own numbers (cupti_activity.h, cupti_callbacks.h).
constexpr int kMemcpy = 1, kMemset = 2, kDriver = 4, kRuntime = 5, kConcurrentKernel = 10, kExternalCorrelation = 39;
constexpr int kDeviceKinds[] = {kMemcpy, kMemset, kConcurrentKernel};
constexpr int kCallKinds[] = {kDriver, kRuntime, kExternalCorrelation};
constexpr int kCustomCorrelation = 3;  // CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0
constexpr int kDriverDomain = 1, kRuntimeDomain = 2;
constexpr int kZeroedBuffersAttribute = 5;
constexpr size_t kBufferBytes = size_t{1} << 20;  // some 4000 kernels
constexpr size_t kBufferAlignment = 8;
constexpr size_t kBuffers = 4;

// The beginnings of the library's records. Kernel4 to Kernel11, Memcpy4 to Memcpy6 and Memset2 to Memset4 (CUDA 9 to
// 13) agree in these.
struct KernelRecord {
  uint32_t kind, flags[3];
  uint64_t start_ns, end_ns, completed_ns;
  uint32_t device, context, stream;
  int32_t grid[3], block[3], static_shared, dynamic_shared;
  uint32_t local_per_thread, local_total, correlation;
  int64_t grid_id;
  const char* name;
};
static_assert(offsetof(KernelRecord, start_ns) == 16 && offsetof(KernelRecord, grid) == 52);
static_assert(offsetof(KernelRecord, correlation) == 92 && offsetof(KernelRecord, name) == 104);

struct CopyRecord {  // and fill
  uint32_t kind;
  uint8_t copy_kind, more[3];  // a fill has its value here
  uint64_t bytes, start_ns, end_ns;
  uint32_t device, context, stream, correlation;
};
static_assert(offsetof(CopyRecord, bytes) == 8 && offsetof(CopyRecord, correlation) == 44);

struct ApiRecord {
  uint32_t kind, function;
  uint64_t start_ns, end_ns;
  uint32_t process, thread, correlation, result;
};
static_assert(offsetof(ApiRecord, correlation) == 32);

struct CorrelationRecord {
  uint32_t kind, external_kind;
  uint64_t external;
  uint32_t correlation, reserved;
};
static_assert(offsetof(CorrelationRecord, correlation) == 16);

const char* copy_name(uint8_t kind) {
  switch (kind) {
    case 1:
      return "copy host → device";
    case 2:
      return "copy device → host";
    case 8:
      return "copy device → device";
    default:
      return "copy";
  }
}

struct Library {
  void* handle = nullptr;
  int (*version)(uint32_t*) = nullptr;
  int (*timestamp)(uint64_t*) = nullptr;
  int (*enable)(int) = nullptr;
  int (*disable)(int) = nullptr;
  int (*flush)(uint32_t) = nullptr;
  int (*next_record)(uint8_t*, size_t, void**) = nullptr;
  int (*dropped)(void*, uint32_t, size_t*) = nullptr;
  int (*push)(int, uint64_t) = nullptr;
  int (*pop)(int, uint64_t*) = nullptr;
  int (*set_attribute)(int, size_t*, void*) = nullptr;
  int (*set_callbacks)(void (*)(uint8_t**, size_t*, size_t*),
                       void (*)(void*, uint32_t, uint8_t*, size_t, size_t)) = nullptr;
  int (*error_text)(int, const char**) = nullptr;
  int (*function_name)(int, uint32_t, const char**) = nullptr;
};

// Empty when all is well.
std::string open(Library& library) {
  for (const char* name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so", "/usr/local/cuda/lib64/libcupti.so",
                           "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"}) {
    library.handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library.handle != nullptr) break;
  }
  if (library.handle == nullptr) {
    return "the library CUPTI (libcupti.so.13 or .12) cannot be opened; it is part of the CUDA toolkit, and "
           "LD_LIBRARY_PATH may name its folder";
  }
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library.handle, name));
    if (function == nullptr) missing = std::string("the library CUPTI has no function ") + name;
  };
  find(library.version, "cuptiGetVersion");
  find(library.timestamp, "cuptiGetTimestamp");
  find(library.enable, "cuptiActivityEnable");
  find(library.disable, "cuptiActivityDisable");
  find(library.flush, "cuptiActivityFlushAll");
  find(library.next_record, "cuptiActivityGetNextRecord");
  find(library.dropped, "cuptiActivityGetNumDroppedRecords");
  find(library.push, "cuptiActivityPushExternalCorrelationId");
  find(library.pop, "cuptiActivityPopExternalCorrelationId");
  find(library.set_attribute, "cuptiActivitySetAttribute");
  find(library.set_callbacks, "cuptiActivityRegisterCallbacks");
  find(library.error_text, "cuptiGetResultString");
  find(library.function_name, "cuptiGetCallbackName");
  return missing;
}

// What the library's callbacks, which know no object, write to. Never destroyed: they may come until the process ends.
struct Collected {
  std::mutex mutex;
  Library library;
  bool wanted = false;
  size_t dropped = 0;
  struct Timed {
    DeviceActivity activity;
    uint64_t start_ns, end_ns;  // of the library's clock
  };
  std::vector<Timed> activities;
  std::vector<uint8_t*> buffers;  // not with the library, all bytes zero
  std::unordered_map<uint32_t, int64_t> op_of_correlation;
  void reserve();
};

// Null when there is no memory.
uint8_t* make_buffer() {
  auto* const buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  if (buffer != nullptr) std::memset(buffer, 0, kBufferBytes);
  return buffer;
}

// Buffers made, and their pages touched, before what is traced runs.
void Collected::reserve() {
  const std::lock_guard lock(mutex);
  buffers.reserve(kBuffers);
  while (buffers.size() < kBuffers) {
    uint8_t* const buffer = make_buffer();
    if (buffer == nullptr) return;
    buffers.push_back(buffer);
  }
}

Collected& collected() {
  static Collected* const one = new Collected;
  return *one;
}

void add(Collected& c, const void* record) {
  const auto span = [&](DeviceActivity::Kind kind, std::string name, uint64_t start, uint64_t end, uint32_t correlation,
                        int64_t bytes) {
    if (end < start) return;
    c.activities.push_back(
        {{.kind = kind, .name = std::move(name), .bytes = bytes, .correlation = correlation}, start, end});
  };
  switch (*static_cast<const uint32_t*>(record)) {
    case kConcurrentKernel: {
      const auto& k = *static_cast<const KernelRecord*>(record);
      span(DeviceActivity::Kind::kKernel, k.name != nullptr ? k.name : "kernel", k.start_ns, k.end_ns, k.correlation,
           0);
      if (k.end_ns >= k.start_ns)
        c.activities.back().activity.grid = fmt::format("[{},{},{}]", k.grid[0], k.grid[1], k.grid[2]);
      break;
    }
    case kMemcpy:
    case kMemset: {
      const auto& m = *static_cast<const CopyRecord*>(record);
      const bool copy = m.kind == kMemcpy;
      span(copy ? DeviceActivity::Kind::kCopy : DeviceActivity::Kind::kFill, copy ? copy_name(m.copy_kind) : "fill",
           m.start_ns, m.end_ns, m.correlation, static_cast<int64_t>(m.bytes));
      break;
    }
    case kRuntime:
    case kDriver: {
      const auto& a = *static_cast<const ApiRecord*>(record);
      const char* name = nullptr;
      c.library.function_name(a.kind == kRuntime ? kRuntimeDomain : kDriverDomain, a.function, &name);
      span(DeviceActivity::Kind::kApi, name != nullptr ? name : "call", a.start_ns, a.end_ns, a.correlation, 0);
      break;
    }
    case kExternalCorrelation: {
      const auto& e = *static_cast<const CorrelationRecord*>(record);
      c.op_of_correlation[e.correlation] = static_cast<int64_t>(e.external);
      break;
    }
    default:
      break;
  }
}

void buffer_wanted(uint8_t** buffer, size_t* size, size_t* most_records) {
  Collected& c = collected();
  const std::lock_guard lock(c.mutex);
  if (c.buffers.empty()) {
    *buffer = make_buffer();
  } else {
    *buffer = c.buffers.back();
    c.buffers.pop_back();
  }
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;
}

void buffer_filled(void* context, uint32_t stream, uint8_t* buffer, size_t, size_t valid_bytes) {
  Collected& c = collected();
  try {
    const std::lock_guard lock(c.mutex);
    void* record = nullptr;
    while (c.wanted && c.library.next_record(buffer, valid_bytes, &record) == 0) add(c, record);
    size_t dropped = 0;
    if (c.library.dropped(context, stream, &dropped) == 0) c.dropped += dropped;
  } catch (const std::exception&) {  // no memory: the library cannot be told
    ++c.dropped;
  }
  std::memset(buffer, 0, kBufferBytes);
  const std::lock_guard lock(c.mutex);
  if (c.buffers.size() < kBuffers) {
    c.buffers.push_back(buffer);  // never moves: reserve() made room
  } else {
    std::free(buffer);
  }
}

// "void tendon::gpu::norm_rows<…>(…)" of "_ZN…"; other names as they are.
std::string demangled(const std::string& name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 && text != nullptr ? text : name;
  std::free(text);
  return result;
}

void require(int status, const char* what) {
  if (status == 0) return;
  const char* text = nullptr;
  collected().library.error_text(status, &text);
  throw_device("CUPTI: {} failed: {} ({})", what, text != nullptr ? text : "unknown reason", status);
}

class CuptiTracer final : public DeviceTracer {
 public:
  std::string library() const override {
    uint32_t version = 0;
    collected().library.version(&version);
    return version >= 100000 ? fmt::format("CUPTI {}.{}", version / 10000, version / 100 % 100)
                             : fmt::format("CUPTI API {}", version);
  }

  ~CuptiTracer() override {
    for (const int kind : enabled_) collected().library.disable(kind);
  }

  void start(bool calls) override {
    Collected& c = collected();
    c.reserve();
    if (!enabled_.empty()) require(c.library.flush(0), "flushing the records");
    {
      const std::lock_guard lock(c.mutex);
      c.activities.clear();
      c.op_of_correlation.clear();
      c.dropped = 0;
      c.wanted = true;
    }
    // A kind that is on already stays on: at the first launch after a change the library prepares the graph anew.
    for (const int kind : kDeviceKinds) enable(kind, true);
    for (const int kind : kCallKinds) enable(kind, calls);
    require(c.library.timestamp(&start_ns_), "reading the clock");
  }

  void next_op(int64_t op) override {
    const Library& library = collected().library;
    if (pushed_) {
      uint64_t last = 0;
      require(library.pop(kCustomCorrelation, &last), "ending an operation");
      pushed_ = false;
    }
    if (op < 0) return;
    require(library.push(kCustomCorrelation, static_cast<uint64_t>(op)), "beginning an operation");
    pushed_ = true;
  }

  std::vector<DeviceActivity> stop(size_t& dropped) override {
    Collected& c = collected();
    next_op(-1);
    require(c.library.flush(0), "flushing the records");
    while (!enabled_.empty()) enable(enabled_.back(), false);
    const std::lock_guard lock(c.mutex);
    c.wanted = false;
    dropped = c.dropped;
    std::unordered_map<std::string, std::string> readable;
    std::vector<DeviceActivity> result;
    for (Collected::Timed& timed : c.activities) {
      if (timed.start_ns < start_ns_) continue;
      DeviceActivity& activity = timed.activity;
      activity.start_us = static_cast<double>(timed.start_ns - start_ns_) * 1e-3;
      activity.duration_us = static_cast<double>(timed.end_ns - timed.start_ns) * 1e-3;
      if (activity.kind == DeviceActivity::Kind::kKernel) {
        const auto [place, is_new] = readable.try_emplace(activity.name);
        if (is_new) place->second = demangled(activity.name);
        activity.name = place->second;
      }
      const auto found = c.op_of_correlation.find(activity.correlation);
      if (found != c.op_of_correlation.end()) activity.op = found->second;
      result.push_back(std::move(activity));
    }
    c.activities.clear();
    std::ranges::stable_sort(result, {}, &DeviceActivity::start_us);
    return result;
  }

 private:
  void enable(int kind, bool on) {
    const auto found = std::ranges::find(enabled_, kind);
    if ((found != enabled_.end()) == on) return;
    const Library& library = collected().library;
    if (on) {
      require(library.enable(kind), "enabling a kind of records");
      enabled_.push_back(kind);
    } else {
      require(library.disable(kind), "disabling a kind of records");
      enabled_.erase(found);
    }
  }

  uint64_t start_ns_ = 0;
  bool pushed_ = false;
  std::vector<int> enabled_;
};

}  // namespace

TracerOrReason make_cupti_tracer() {
  Library& library = collected().library;
  if (library.handle == nullptr) {
    Library found;
    if (std::string reason = open(found); !reason.empty()) return {.reason = std::move(reason)};
    library = found;
    // Buffers come zeroed; else the library zeroes each one at a launch. A library that refuses does so.
    uint8_t zeroed = 1;
    size_t bytes = sizeof(zeroed);
    library.set_attribute(kZeroedBuffersAttribute, &bytes, &zeroed);
    const int status = library.set_callbacks(buffer_wanted, buffer_filled);
    if (status != 0) {
      const char* text = nullptr;
      library.error_text(status, &text);
      return {.reason = fmt::format("CUPTI does not start: {}; is another profiler attached?", text ? text : "?")};
    }
  }
  return {.tracer = std::make_unique<CuptiTracer>()};
}

}  // namespace tendon
