// Kernels of the fake libamdhip64: code objects taken apart, kernels found by name, launches.
#include "backend/sim/fake_hip.h"
#include "backend/sim/fake_hip_code.h"
#include "backend/sim/sim_stream.h"
#include "base/check.h"

using namespace tendon;
using namespace tendon::sim;

namespace {

struct FakeFunction {
  const NamedKernel* kernel;
  CodeKernel limits;
};
struct FakeModule {
  CodeObject code;
  std::map<std::string, FakeFunction> functions;
};

// What programs leave loaded goes with the library.
std::vector<std::unique_ptr<FakeModule>>& loaded_modules() {
  static std::vector<std::unique_ptr<FakeModule>> all;
  return all;
}

int launch(gpu::Runtime& card, const FakeFunction& function, dim3 grid, dim3 block, unsigned shared_bytes,
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

FAKE int hipModuleLoadData(void** module, const void* image) {
  if (const int code = refused_in_capture("hipModuleLoadData")) return code;
  return guarded([&](gpu::Runtime&) {
    auto loaded = std::make_unique<FakeModule>();
    loaded->code = read_code_object(image);
    if (loaded->code.architecture != driver().architecture)
      return failed(kNoBinaryForGpu, "the code object is for another card");
    *module = loaded_modules().emplace_back(std::move(loaded)).get();
    return kSuccess;
  });
}
FAKE int hipModuleUnload(void* module) {
  if (const int code = refused_in_capture("hipModuleUnload")) return code;
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
  return enqueue("hipModuleLaunchKernel", stream, [&](gpu::Runtime& card) {
    return launch(card, *static_cast<FakeFunction*>(function), {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                  shared_bytes, parameters);
  });
}

// How the fake libhipblaslt starts what it computes.
extern "C" __attribute__((visibility("default"))) int tendon_fake_hip_submit(void* stream,
                                                                             const std::function<void()>& work) {
  return enqueue("a library's kernel", stream, [&](gpu::Runtime& card) {
    submit(card.stream(), work);
    return kSuccess;
  });
}
