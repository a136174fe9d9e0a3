// The kernels in the program: code objects that the compiler put into it, loaded onto a card when it is opened.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tendon::hip {

struct KernelName {
  const void* handle;  // the address that stands for the kernel in host code
  std::string symbol;  // its name in the code object
};

// One source file's kernels, as the compiler's start-up code registered them.
struct RegisteredModule {
  const void* bundle = nullptr;  // code objects for several cards, in clang's offload bundle format
  std::vector<KernelName> kernels;
};
const std::vector<RegisteredModule*>& registered_modules();

// The code object for "gfx942" in a bundle; empty when there is none. Throws Error(kInternal) when it is no bundle.
std::string_view find_code_object(const void* bundle, std::string_view architecture);

// Loads all kernels onto the current card and makes them the ones that launch_kernel() finds for this thread's card.
// Throws Error(kDevice) when one is not there. Calls for the same card after the first do nothing.
void load_modules(int device, std::string_view architecture);

// Which card launches of the calling thread go to.
void set_launch_device(int device);

}  // namespace tendon::hip
