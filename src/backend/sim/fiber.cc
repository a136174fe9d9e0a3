#include "backend/sim/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves what a call must preserve on the old stack, and takes it from the new one. The floating-point control words are
// the same for all fibers.
asm(R"(
.text
.p2align 4
.type tendon_simt_switch, @function
tendon_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tendon_simt_switch, .-tendon_simt_switch
)");
extern "C" void tendon_simt_switch(void** from, void* to);

namespace tendon::simt {
namespace {

constexpr uint64_t kCanary = 0x5afe57acc0ffee00ULL;

}  // namespace

Stacks::Stacks(size_t count) : count_(count) {
  void* const memory = mmap(nullptr, count * kBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::byte*>(memory);
}
Stacks::~Stacks() {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(memory_, count_ * kBytes);  // the next mapping at this address starts clean
#endif
  munmap(memory_, count_ * kBytes);
}

bool Stacks::intact(size_t index) const {
  uint64_t canary;
  std::memcpy(&canary, bottom(index), sizeof(canary));
  return canary == kCanary;
}

Context start_of(std::byte* bottom, void (*entry)()) {
  std::memcpy(bottom, &kCanary, sizeof(kCanary));
#ifdef __SANITIZE_ADDRESS__
  // A kernel that was given up left its frames' red zones behind.
  __asan_unpoison_memory_region(bottom, Stacks::kBytes);
#endif
  // From the top: a return address for entry's frame (none), entry, six registers. After the switch's return the stack
  // pointer is 8 below a multiple of 16, as after a call.
  void* frame[8] = {};
  frame[6] = reinterpret_cast<void*>(entry);
  std::byte* const at = bottom + Stacks::kBytes - sizeof(frame);
  std::memcpy(at, frame, sizeof(frame));
  return {.stack_pointer = at, .bottom = bottom, .bytes = Stacks::kBytes, .fake_stack = nullptr};
}

void switch_to(Context& from, Context& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.bytes);
#endif
  tendon_simt_switch(&from.stack_pointer, to.stack_pointer);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void arrived_from([[maybe_unused]] Context& from) {
#ifdef __SANITIZE_ADDRESS__
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (from.bottom == nullptr) from.bottom = bottom, from.bytes = bytes;
#endif
}

}  // namespace tendon::simt
