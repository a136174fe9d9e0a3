// Kernels by name, for a driver that is asked for them so: every kernel that some launch() of the program names.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

namespace tendon::sim {

struct NamedKernel {
  const char* type;  // the mangled name of a type that has the kernel as its argument
  // What one thread runs, with a copy of the arguments at these addresses.
  std::function<void()> (*body)(void** parameters);
};
inline std::vector<NamedKernel>& named_kernels() {
  static std::vector<NamedKernel> all;
  return all;
}

template <auto kKernel>
struct KernelTag {};

template <auto kKernel, class... Parameters>
constexpr NamedKernel named(void (*)(Parameters...)) {
  return {typeid(KernelTag<kKernel>).name(), [](void** parameters) -> std::function<void()> {
            return [&]<size_t... i>(std::index_sequence<i...>) {
              return [values = std::tuple<Parameters...>(*static_cast<Parameters*>(parameters[i])...)] {
                std::apply(kKernel, values);
              };
            }
            (std::index_sequence_for<Parameters...>());
          }};
}

template <auto kKernel>
inline const bool kIsNamed = (named_kernels().push_back(named<kKernel>(kKernel)), true);

// Makes the kernel known to named_kernels() at the program's start.
template <auto kKernel>
void keep_name() {
#ifdef TENDON_SIMT_NAMES
  static_cast<void>(&kIsNamed<kKernel>);
#endif
}

}  // namespace tendon::sim
