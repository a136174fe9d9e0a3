#include "backend/hip/modules.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include "backend/hip/launch.h"
#include "backend/hip/library.h"
#include "base/check.h"

namespace tendon::hip {
namespace {

std::vector<RegisteredModule*>& modules() {
  static std::vector<RegisteredModule*> all;
  return all;
}

using Functions = std::unordered_map<const void*, FunctionHandle>;

std::mutex& loading_mutex() {
  static std::mutex mutex;
  return mutex;
}
// By device. Entries are never changed once they are there.
std::map<int, Functions>& loaded() {
  static std::map<int, Functions> all;
  return all;
}
thread_local const Functions* current = nullptr;

uint64_t read_number(const char*& at) {
  uint64_t number;
  std::memcpy(&number, at, sizeof(number));
  at += sizeof(number);
  return number;
}

}  // namespace

const std::vector<RegisteredModule*>& registered_modules() { return modules(); }

// magic, number of entries, and for each: offset, size, length of its name, name ("hipv4-amdgcn-amd-amdhsa--gfx942").
std::string_view find_code_object(const void* bundle, std::string_view architecture) {
  constexpr std::string_view kMagic = "__CLANG_OFFLOAD_BUNDLE__";
  const auto* at = static_cast<const char*>(bundle);
  TENDON_CHECK(std::string_view(at, kMagic.size()) == kMagic, "the program's AMD kernels are not an offload bundle");
  at += kMagic.size();
  const uint64_t count = read_number(at);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t offset = read_number(at);
    const uint64_t bytes = read_number(at);
    const uint64_t length = read_number(at);
    const std::string_view name(at, length);
    at += length;
    if (bytes > 0 && name.starts_with("hip") && name.ends_with(architecture) &&
        name[name.size() - architecture.size() - 1] == '-') {
      return {static_cast<const char*>(bundle) + offset, bytes};
    }
  }
  return {};
}

void load_modules(int device, std::string_view architecture) {
  const std::lock_guard lock(loading_mutex());
  if (loaded().contains(device)) return;
  const Library& hip = *library();
  Functions functions;
  for (const RegisteredModule* registered : modules()) {
    const std::string_view code = find_code_object(registered->bundle, architecture);
    if (code.empty()) throw_device("the program holds no kernels for {}", architecture);
    ModuleHandle module = nullptr;  // stays loaded to the end of the process
    hip.require(hip.hipModuleLoadData(&module, code.data()), "loading kernels onto the card");
    for (const KernelName& kernel : registered->kernels) {
      FunctionHandle& function = functions[kernel.handle];
      const std::string what = fmt::format("finding kernel {}", kernel.symbol);
      hip.require(hip.hipModuleGetFunction(&function, module, kernel.symbol.c_str()), what.c_str());
    }
  }
  loaded().emplace(device, std::move(functions));
}

void set_launch_device(int device) {
  const std::lock_guard lock(loading_mutex());
  const auto found = loaded().find(device);
  current = found == loaded().end() ? nullptr : &found->second;
}

void launch_kernel(const void* kernel, const LaunchSize& size, gpu::Stream stream, void** parameters) {
  if (current == nullptr) throw_device("a kernel was launched before a card was chosen in this thread");
  const auto found = current->find(kernel);
  if (found == current->end()) throw_device("a kernel was launched that the program's code objects do not hold");
  const Library& hip = *library();
  hip.require(hip.hipModuleLaunchKernel(found->second, size.grid[0], size.grid[1], size.grid[2], size.block[0],
                                        size.block[1], size.block[2], static_cast<unsigned>(size.shared_bytes),
                                        reinterpret_cast<StreamHandle>(stream), parameters, nullptr),
              "launching a kernel");
}

}  // namespace tendon::hip

// What the start-up code of every object with kernels calls, as clang emits it for HIP.
extern "C" {

struct FatBinaryWrapper {
  unsigned magic, version;
  const void* binary;
  void* unused;
};

void** __hipRegisterFatBinary(const FatBinaryWrapper* wrapper) {
  auto* const module = new tendon::hip::RegisteredModule{.bundle = wrapper->binary, .kernels = {}};
  tendon::hip::modules().push_back(module);
  return reinterpret_cast<void**>(module);
}
void __hipRegisterFunction(void** module, const void* handle, char*, const char* symbol, unsigned, void*, void*, void*,
                           void*, int*) {
  reinterpret_cast<tendon::hip::RegisteredModule*>(module)->kernels.push_back({handle, symbol});
}
void __hipUnregisterFatBinary(void** module) {
  auto* const registered = reinterpret_cast<tendon::hip::RegisteredModule*>(module);
  std::erase(tendon::hip::modules(), registered);
  delete registered;
}

// Launch stubs refer to these; launches do not go through stubs.
int __hipPopCallConfiguration(void*, void*, size_t*, void*) { return 1; }
struct LaunchDimensions {
  unsigned x, y, z;
};
int hipLaunchKernel(const void*, LaunchDimensions, LaunchDimensions, void**, size_t, void*) { return 1; }
}
