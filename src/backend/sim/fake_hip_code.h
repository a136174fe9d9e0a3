// What the fake libamdhip64 reads in an AMD code object: which card it is for and which kernels it holds.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace tendon::sim {

struct CodeKernel {
  size_t static_shared_bytes = 0;
  size_t scratch_bytes = 0;
  unsigned most_threads = 0;  // of a block
};

struct CodeObject {
  int architecture = 0;                       // 942, 950; 0: another one
  std::map<std::string, CodeKernel> kernels;  // by mangled name
};

// Throws Error(kBadInput) for what is not a code object for AMD cards.
CodeObject read_code_object(const void* image);

// "void tendon::gpu::rope_kernel<float>(float const*)" for a kernel's mangled name.
std::string demangled(const std::string& name);

}  // namespace tendon::sim
