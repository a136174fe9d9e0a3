// A fiber: a stack of its own, and the switch between two of them. x86-64 System V.
#pragma once

#include <cstddef>
#include <memory>

namespace tendon::simt {

// Stacks are cut from one mapping and used again; pages that were never touched cost nothing.
class Stacks {
 public:
  explicit Stacks(size_t count);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

#ifdef __SANITIZE_ADDRESS__
  static constexpr size_t kBytes = size_t{256} << 10;
#else
  static constexpr size_t kBytes = size_t{64} << 10;
#endif
  size_t count() const { return count_; }
  std::byte* bottom(size_t index) const { return memory_ + index * kBytes; }
  // False when the thread on this stack wrote past its end.
  bool intact(size_t index) const;

 private:
  std::byte* memory_ = nullptr;
  size_t count_;
};

// Where a stopped fiber, or the thread that started the fibers, goes on.
struct Context {
  void* stack_pointer = nullptr;
  const void* bottom = nullptr;  // of its stack, for AddressSanitizer
  size_t bytes = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
};

// A context that will call entry() on an empty stack; entry never returns.
Context start_of(std::byte* bottom, void (*entry)());
// Saves the running context in `from` and goes on with `to`.
void switch_to(Context& from, Context& to);
// Called first on a fresh stack, with the context that switched to it (its bounds may be unknown).
void arrived_from(Context& from);

}  // namespace tendon::simt
