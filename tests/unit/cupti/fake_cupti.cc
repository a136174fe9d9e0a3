// A libcupti for tests: as much of the library as the tracer calls, and hooks that stand for work of a card. Records
// have the layout of CUDA 13's cupti_activity.h; time is a counter that the test moves.
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace {

enum Kind { kMemcpy = 1, kRuntime = 5, kConcurrentKernel = 10, kExternalCorrelation = 39 };
constexpr int kZeroedBuffers = 5;
constexpr int kBufferEnd = 12;  // CUPTI_ERROR_MAX_LIMIT_REACHED

struct Kernel {
  uint32_t kind, flags[3];
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3], shared[2];
  uint32_t local[2], correlation;
  int64_t grid_id;
  const char* name;
  char more[96];
};
static_assert(sizeof(Kernel) == 208);
struct Copy {
  uint32_t kind;
  uint8_t copy_kind, more[3];
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
};
struct Api {
  uint32_t kind, function;
  uint64_t start, end;
  uint32_t process, thread, correlation, result;
};
struct External {
  uint32_t kind, external_kind;
  uint64_t external;
  uint32_t correlation, reserved;
};

struct State {
  void (*wanted)(uint8_t**, size_t*, size_t*) = nullptr;
  void (*filled)(void*, uint32_t, uint8_t*, size_t, size_t) = nullptr;
  uint8_t* buffer = nullptr;
  size_t size = 0, used = 0;
  std::vector<size_t> ends;  // of the records in it
  size_t read = 0;
  std::set<int> enabled;
  std::vector<uint64_t> pushed;
  uint64_t now = 1000;
  bool zeroed = false;
  int requests = 0, dirty = 0, enables = 0;
};
State& state() {
  static State one;
  return one;
}

void give_back() {
  State& s = state();
  if (s.buffer == nullptr) return;
  s.read = 0;
  s.filled(nullptr, 0, s.buffer, s.size, s.used);
  s.buffer = nullptr;
  s.ends.clear();
}

template <class Record>
void put(int kind, const Record& record) {
  State& s = state();
  if (!s.enabled.contains(kind)) return;
  if (s.buffer != nullptr && s.used + sizeof(record) > s.size) give_back();
  if (s.buffer == nullptr) {
    size_t most = 0;
    s.wanted(&s.buffer, &s.size, &most);
    ++s.requests;
    for (size_t i = 0; i < s.size; ++i) s.dirty += s.buffer[i] != 0 ? 1 : 0;
    s.used = 0;
  }
  std::memcpy(s.buffer + s.used, &record, sizeof(record));
  s.used += sizeof(record);
  s.ends.push_back(s.used);
}

}  // namespace

extern "C" {

int cuptiGetVersion(uint32_t* version) { return *version = 130200, 0; }
int cuptiGetTimestamp(uint64_t* now) { return *now = state().now, 0; }
int cuptiActivityEnable(int kind) { return state().enabled.insert(kind), ++state().enables, 0; }
int cuptiActivityDisable(int kind) { return state().enabled.erase(kind), 0; }
int cuptiActivityFlushAll(uint32_t) { return give_back(), 0; }
int cuptiActivityGetNextRecord(uint8_t* buffer, size_t, void** record) {
  State& s = state();
  if (s.read == s.ends.size()) return kBufferEnd;
  *record = buffer + (s.read == 0 ? 0 : s.ends[s.read - 1]);
  ++s.read;
  return 0;
}
int cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* dropped) { return *dropped = 0, 0; }
int cuptiActivityPushExternalCorrelationId(int, uint64_t id) { return state().pushed.push_back(id), 0; }
int cuptiActivityPopExternalCorrelationId(int, uint64_t* id) {
  *id = state().pushed.back();
  return state().pushed.pop_back(), 0;
}
int cuptiActivitySetAttribute(int attribute, size_t* bytes, void* value) {
  if (attribute != kZeroedBuffers || *bytes != 1) return 1;
  state().zeroed = *static_cast<uint8_t*>(value) != 0;
  return 0;
}
int cuptiActivityRegisterCallbacks(void (*wanted)(uint8_t**, size_t*, size_t*),
                                   void (*filled)(void*, uint32_t, uint8_t*, size_t, size_t)) {
  state().wanted = wanted;
  state().filled = filled;
  return 0;
}
int cuptiGetResultString(int, const char** text) { return *text = "fake", 0; }
int cuptiGetCallbackName(int, uint32_t, const char** name) { return *name = "cudaLaunchKernel", 0; }

// A launch with its call; the kernel runs from now for `ns`.
void fake_kernel(const char* name, uint32_t correlation, uint64_t ns) {
  State& s = state();
  if (!s.pushed.empty()) {
    put(kExternalCorrelation, External{kExternalCorrelation, 3, s.pushed.back(), correlation, 0});
  }
  put(kRuntime, Api{kRuntime, 211, s.now, s.now + 1, 1, 1, correlation, 0});
  Kernel kernel{};
  kernel.kind = kConcurrentKernel;
  kernel.start = s.now, kernel.end = s.now + ns;
  kernel.grid[0] = 2, kernel.grid[1] = 66, kernel.grid[2] = 1;
  kernel.correlation = correlation;
  kernel.name = name;
  put(kConcurrentKernel, kernel);
  s.now += ns;
}
void fake_copy(uint64_t bytes, uint64_t ns) {
  State& s = state();
  put(kMemcpy, Copy{kMemcpy, 1, {}, bytes, s.now, s.now + ns, 0, 0, 0, 0});
  s.now += ns;
}
int fake_requests() { return state().requests; }
int fake_dirty_bytes() { return state().dirty; }
int fake_enables() { return state().enables; }
bool fake_takes_zeroed_buffers() { return state().zeroed; }

}  // extern "C"
