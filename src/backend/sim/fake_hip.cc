// A libamdhip64 for tests: HIP's calls over the simulated card, with the kernels' own sources at 64 lanes a wave. It
// answers for a kernel only when the code object that was loaded holds it, and refuses what a card would: more threads
// or shared memory than the kernel has, calls that no capture may hold (error 900), work in a capture that such a call
// has spoilt (901). The environment variable TENDON_FAKE_HIP has faults to order: the words of parse_sim_options(), and
// gfx=950, count=0.
#include <charconv>
#include <cstdlib>
#include <map>
#include <string>

#include "backend/sim/fake_hip_code.h"
#include "backend/sim/named_kernels.h"
#include "backend/sim/sim_runtime.h"
#include "backend/sim/sim_stream.h"
#include "base/check.h"

namespace tendon::sim {
namespace {

// hipError_t
constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidConfiguration = 9;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr int kNoBinaryForGpu = 209;
constexpr int kInvalidHandle = 400;
constexpr int kNotFound = 500;
constexpr int kLaunchFailure = 719;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureInvalidated = 901;

struct FakeFunction {
  const NamedKernel* kernel;
  CodeKernel limits;
};
struct FakeModule {
  CodeObject code;
  std::map<std::string, FakeFunction> functions;
};

struct Driver {
  SimOptions options;
  int architecture = 942, count = 1;
  std::unique_ptr<gpu::Runtime> card;
  std::map<std::string, const NamedKernel*> kernels;  // null: two have this name
  bool capturing = false;
  int last_code = kSuccess;
  std::string last_words;

  Driver() {
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
      } else {
        rest += (rest.empty() ? "" : ",") + std::string(word);
      }
    }
    options = parse_sim_options(rest);
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
  gpu::Runtime& open() {
    if (card == nullptr) card = make_sim_runtime(options);
    return *card;
  }
  size_t shared_bytes() const { return architecture == 950 ? size_t{160} << 10 : size_t{64} << 10; }
};

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

template <class F>
int guarded(F&& f) {
  try {
    return f(driver().open());
  } catch (const std::exception& error) {
    const std::string words = error.what();
    if (words.find("when stream is capturing") != std::string::npos) return failed(kCaptureUnsupported, words);
    if (words.find("invalid") != std::string::npos) return failed(kCaptureInvalidated, words);
    return failed(kLaunchFailure, words);
  }
}

int launch(gpu::Runtime& card, const FakeFunction& function, dim3 grid, dim3 block, unsigned shared_bytes, void* stream,
           void** parameters) {
  if (block.x * block.y * block.z > function.limits.most_threads) {
    return failed(kInvalidConfiguration, fmt::format("blocks of {} threads of a kernel that was compiled for {}",
                                                     block.x * block.y * block.z, function.limits.most_threads));
  }
  if (shared_bytes + function.limits.static_shared_bytes > driver().shared_bytes()) {
    return failed(kInvalidConfiguration,
                  fmt::format("{} + {} bytes of shared memory, a block has {}", function.limits.static_shared_bytes,
                              shared_bytes, driver().shared_bytes()));
  }
  if (stream != card.stream()) return failed(kInvalidHandle, "a launch on another stream");
  submit(card.stream(),
         simt::Kernel{{.grid = grid, .block = block, .shared_bytes = shared_bytes}, function.kernel->body(parameters)});
  return kSuccess;
}

// "f" for "f(int, (anonymous namespace)::Args)".
std::string without_parameters(const std::string& function) {
  size_t at = function.size();
  int open = 0;
  do {
    if (at == 0) return function;
    --at;
    open += function[at] == ')' ? 1 : function[at] == '(' ? -1 : 0;
  } while (open != 0);
  return function.substr(0, at);
}

}  // namespace
}  // namespace tendon::sim

using namespace tendon;
using namespace tendon::sim;

#define FAKE extern "C" __attribute__((visibility("default")))

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
  return guarded([&](gpu::Runtime& card) {
    *memory = card.allocate(bytes);
    return *memory != nullptr ? kSuccess : failed(kOutOfMemory, "out of memory");
  });
}
FAKE int hipFree(void* memory) {
  if (driver().card != nullptr) driver().card->release(memory);
  return kSuccess;
}
FAKE int hipHostMalloc(void** memory, size_t bytes, unsigned) {
  return guarded([&](gpu::Runtime& card) {
    *memory = card.allocate_host(bytes);
    return *memory != nullptr ? kSuccess : failed(kOutOfMemory, "out of memory");
  });
}
FAKE int hipHostFree(void* memory) {
  if (driver().card != nullptr) driver().card->release_host(memory);
  return kSuccess;
}
FAKE int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void*) {
  return guarded([&](gpu::Runtime& card) {
    if (kind == 1) {
      card.copy_to_device(to, from, bytes);
    } else {
      card.copy_to_host(to, from, bytes);
    }
    return kSuccess;
  });
}
FAKE int hipMemsetAsync(void* memory, int value, size_t bytes, void*) {
  if (value != 0) return failed(kInvalidValue, "the fake only clears memory");
  return guarded([&](gpu::Runtime& card) {
    card.fill_zero(memory, bytes);
    return kSuccess;
  });
}

FAKE int hipStreamCreateWithFlags(void** stream, unsigned) {
  return guarded([&](gpu::Runtime& card) {
    *stream = card.stream();
    return kSuccess;
  });
}
FAKE int hipStreamDestroy(void*) { return kSuccess; }
FAKE int hipStreamSynchronize(void*) {
  return guarded([](gpu::Runtime& card) {
    card.synchronize();
    return kSuccess;
  });
}
FAKE int hipStreamBeginCapture(void*, int mode) {
  if (mode != 1) return failed(kInvalidValue, "captures are to be of this thread's work only");
  return guarded([](gpu::Runtime& card) {
    card.begin_capture();
    driver().capturing = true;
    return kSuccess;
  });
}
FAKE int hipStreamEndCapture(void*, void** graph) {
  *graph = nullptr;
  driver().capturing = false;
  return guarded([&](gpu::Runtime& card) {
    *graph = card.end_capture().release();
    return kSuccess;
  });
}
FAKE int hipStreamIsCapturing(void*, int* status) {
  *status = driver().capturing ? 1 : 0;
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
    *event = card.make_event().release();
    return kSuccess;
  });
}
FAKE int hipEventDestroy(void* event) {
  delete static_cast<gpu::Event*>(event);
  return kSuccess;
}
FAKE int hipEventRecord(void* event, void*) {
  return guarded([&](gpu::Runtime& card) {
    card.record(*static_cast<gpu::Event*>(event));
    return kSuccess;
  });
}
FAKE int hipEventElapsedTime(float* ms, void* from, void* to) {
  return guarded([&](gpu::Runtime& card) {
    *ms = static_cast<float>(card.elapsed_us(*static_cast<gpu::Event*>(from), *static_cast<gpu::Event*>(to)) / 1e3);
    return kSuccess;
  });
}

// What programs leave loaded goes with the library.
static std::vector<std::unique_ptr<FakeModule>>& loaded_modules() {
  static std::vector<std::unique_ptr<FakeModule>> all;
  return all;
}

FAKE int hipModuleLoadData(void** module, const void* image) {
  return guarded([&](gpu::Runtime&) {
    if (driver().capturing) return failed(kCaptureUnsupported, "loading kernels when stream is capturing");
    auto loaded = std::make_unique<FakeModule>();
    loaded->code = read_code_object(image);
    if (loaded->code.architecture != driver().architecture)
      return failed(kNoBinaryForGpu, "the code object is for another card");
    *module = loaded_modules().emplace_back(std::move(loaded)).get();
    return kSuccess;
  });
}
FAKE int hipModuleUnload(void* module) {
  std::erase_if(loaded_modules(), [&](const auto& loaded) { return loaded.get() == module; });
  return kSuccess;
}
FAKE int hipModuleGetFunction(void** function, void* module, const char* name) {
  return guarded([&](gpu::Runtime&) {
    auto& loaded = *static_cast<FakeModule*>(module);
    const auto code = loaded.code.kernels.find(name);
    if (code == loaded.code.kernels.end()) return failed(kNotFound, "the code object has no such kernel");
    const std::string words = demangled(name);
    auto kernel = driver().kernels.find(words);
    if (kernel == driver().kernels.end()) kernel = driver().kernels.find(without_parameters(words));
    if (kernel == driver().kernels.end()) return failed(kNotFound, "the simulated card has no such kernel: " + words);
    if (kernel->second == nullptr)
      return failed(kNotFound, "the simulated card has two kernels of this name: " + words);
    *function = &(loaded.functions[name] = {kernel->second, code->second});
    return kSuccess;
  });
}
FAKE int hipModuleLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,
                               void** parameters, void**) {
  return guarded([&](gpu::Runtime& card) {
    return launch(card, *static_cast<FakeFunction*>(function), {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                  shared_bytes, stream, parameters);
  });
}
