#include "backend/sim/simt.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <string_view>
#include <tuple>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "backend/sim/fiber.h"
#include "base/check.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace tendon::simt {
namespace {

constexpr size_t kMaxSharedBytes = size_t{227} << 10;  // that a kernel may ask for on the largest cards
constexpr size_t kGuardBytes = 64;
constexpr size_t kMisalign = 16;  // shared memory is promised to be 16-byte aligned, no more
constexpr size_t kArenaBytes = kMaxSharedBytes + 64 * kGuardBytes;
constexpr std::byte kPoison{0xff};  // a NaN in bf16 and f32
constexpr std::byte kGuard{0xa5};

void poison([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __asan_poison_memory_region(p, bytes);
#endif
}
void unpoison([[maybe_unused]] const void* p, [[maybe_unused]] size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  __asan_unpoison_memory_region(p, bytes);
#endif
}

struct Random {
  uint64_t state;
  uint64_t operator()() {  // splitmix64
    uint64_t z = state += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
};

// 0 .. count - 1 in the wanted order: i-th element is (i · step + start) mod count.
struct Sequence {
  uint64_t count = 1, step = 1, start = 0;
  Sequence(Order order, uint64_t n, Random& random) : count(n) {
    if (order == Order::kReverse) {
      step = start = n - 1;
      if (n == 1) step = 1;
    } else if (order == Order::kShuffled && n > 1) {
      start = random() % n;
      do {
        step = 1 + random() % (n - 1);
      } while (std::gcd(step, n) != 1);
    }
  }
  uint64_t operator[](uint64_t i) const { return (i * step + start) % count; }
};

std::string place(const Here& at) {
  const std::string_view file = at.file_name();
  return fmt::format("{}:{}", file.substr(file.find_last_of('/') + 1), at.line());
}

bool same_text(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }
bool same_place(const Here& a, const Here& b) {
  return a.line() == b.line() && same_text(a.file_name(), b.file_name());
}

struct PendingCopy {
  void* to;
  const void* from;
  unsigned bytes, valid_bytes, group;
};

enum class State : uint8_t { kNew, kReady, kAtWave, kAtBlock, kAtCluster, kDone };

struct Fiber {
  Context context;
  int stack = -1;
  int block = 0, wave = 0, lane = 0;
  uint3 thread{};
  State state = State::kNew;
  bool waited = false;  // for producers
  uint64_t cluster_phase = 0;
  unsigned committed = 0;  // groups of copies
  std::vector<PendingCopy> copies;
  Here at;  // where it waits
};

struct Wave {
  int first = 0, lanes = 0, block = 0;
  int arrived = 0, done = 0;
  uint64_t ready = 0;  // a bit for each position in the order of lanes
  const char* name = nullptr;
  Here at;
  std::array<void*, kWaveSize> slots{};
};

struct Block {
  uint3 index{};
  std::byte* shared = nullptr;  // where its dynamic shared memory begins; static arrays lie behind
  int arrived = 0, done = 0;
  Here at;
};

struct StaticArray {
  std::string_view name, file;
  unsigned line;
  size_t offset, bytes;
};

// The blocks of one cluster, running.
class Group {
 public:
  Group() = default;
  ~Group() { unpoison(arenas_.data(), arenas_.size()); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  void run(const Kernel& kernel, Order order, uint64_t seed, const Kernel* producer);

  // Called from fibers.
  void wave_collective(const char* name, void* mine, void (*combine)(void* const*), const Here& at);
  void block_barrier(const Here& at);
  void cluster_arrive();
  void cluster_wait(const Here& at);
  unsigned cluster_rank() const { return static_cast<unsigned>(running_->block); }
  void* peer_shared(void* mine, unsigned rank);
  void* dynamic_shared() const { return blocks_[static_cast<size_t>(running_->block)].shared; }
  void* static_shared(const char* name, size_t bytes, const Here& at);
  void check_shared(const void* p, size_t bytes, size_t alignment, const char* what, const Here& at);
  void copy_async(void* to, const void* from, unsigned bytes, unsigned valid_bytes, const Here& at);
  void copy_commit() { ++running_->committed; }
  void copy_wait(unsigned pending_groups);
  void wait_for_producers();

 private:
  static void enter();
  void run_thread();
  void set_up(const Kernel& kernel);
  void run_cluster(uint64_t number, const Kernel* producer);
  [[noreturn]] void fail(const Here& at, const std::string& what) const;
  [[noreturn]] void report_deadlock() const;
  void check_guards() const;
  void select(Fiber& fiber);
  Fiber* next();
  void yield();  // the running fiber stops; another goes on
  void make_ready(Fiber& fiber);
  size_t shared_end() const {
    return statics_.empty() ? dynamic_bytes_ : statics_.back().offset + statics_.back().bytes;
  }
  Wave& wave_of(const Fiber& fiber) { return waves_[static_cast<size_t>(fiber.wave)]; }
  Block& block_of(const Fiber& fiber) { return blocks_[static_cast<size_t>(fiber.block)]; }

  const Kernel* kernel_ = nullptr;
  const Kernel* producer_ = nullptr;  // until it has run
  Order order_ = Order::kForward;
  Random random_{0};
  int threads_ = 0;  // of a block
  size_t dynamic_bytes_ = 0;
  std::vector<Fiber> fibers_;
  std::vector<Wave> waves_;
  std::vector<Block> blocks_;
  std::vector<StaticArray> statics_;
  std::vector<std::byte> arenas_;
  std::array<int, kWaveSize> lane_at_{}, position_of_{};
  std::vector<size_t> wave_order_;
  std::unique_ptr<Stacks> stacks_;
  std::vector<int> free_stacks_;
  Context main_;
  Fiber* running_ = nullptr;
  size_t current_wave_ = 0;
  unsigned picks_ = 0;
  int cluster_arrived_ = 0;
  uint64_t cluster_phase_ = 0;
  bool wants_producer_ = false;
  bool any_waited_ = false;
  std::exception_ptr error_;
};

// Groups by depth of nesting: a kernel that waits for the one in front has it run by the next.
std::vector<std::unique_ptr<Group>>& groups() {
  static std::vector<std::unique_ptr<Group>> all;
  return all;
}
size_t depth = 0;
Group* active = nullptr;

Group& here() {
  TENDON_CHECK(active != nullptr, "device code was called outside a kernel");
  return *active;
}

void Group::fail(const Here& at, const std::string& what) const {
  throw_device("{}: {} (block {}, {}, {}; thread {}, {}, {})", place(at), what, blockIdx.x, blockIdx.y, blockIdx.z,
               threadIdx.x, threadIdx.y, threadIdx.z);
}

void Group::set_up(const Kernel& kernel) {
  const Shape& s = kernel.shape;
  const uint64_t threads = uint64_t{s.block.x} * s.block.y * s.block.z;
  const bool fits = threads >= 1 && threads <= 1024 && s.block.z <= 64 && s.grid.x >= 1 && s.grid.y >= 1 &&
                    s.grid.z >= 1 && s.grid.x <= 0x7fffffffU && s.grid.y <= 65535 && s.grid.z <= 65535;
  if (!fits) {
    throw_device("a grid of {} × {} × {} blocks of {} × {} × {} threads cannot be launched", s.grid.x, s.grid.y,
                 s.grid.z, s.block.x, s.block.y, s.block.z);
  }
  if (s.shared_bytes > kMaxSharedBytes)
    throw_device("{} bytes of shared memory were asked for, {} is the most", s.shared_bytes, kMaxSharedBytes);
  if (s.cluster == 0 || s.cluster > 8 || s.grid.x % s.cluster != 0)
    throw_device("clusters of {} blocks do not divide a grid of {} along x", s.cluster, s.grid.x);

  threads_ = static_cast<int>(threads);
  dynamic_bytes_ = s.shared_bytes;
  statics_.clear();
  const auto waves_per_block = static_cast<size_t>((threads_ + kWaveSize - 1) / kWaveSize);
  fibers_.resize(threads * s.cluster);
  waves_.resize(waves_per_block * s.cluster);
  blocks_.resize(s.cluster);
  if (arenas_.size() < s.cluster * kArenaBytes + 1024) {
    unpoison(arenas_.data(), arenas_.size());
    arenas_ = std::vector<std::byte>(s.cluster * kArenaBytes + 1024);
  }
  if (stacks_ == nullptr || stacks_->count() < fibers_.size()) stacks_ = std::make_unique<Stacks>(fibers_.size());
  main_ = {};
  free_stacks_.resize(stacks_->count());
  std::iota(free_stacks_.rbegin(), free_stacks_.rend(), 0);
}

void Group::run(const Kernel& kernel, Order order, uint64_t seed, const Kernel* producer) {
  const auto saved = std::tuple(threadIdx, blockIdx, blockDim, gridDim, active);
  active = this;
  ++depth;
  kernel_ = &kernel;
  producer_ = producer;
  order_ = order;
  random_ = {seed};
  error_ = nullptr;
  any_waited_ = wants_producer_ = false;
  const auto restore = [&] {
    --depth;
    std::tie(threadIdx, blockIdx, blockDim, gridDim, active) = saved;
  };
  try {
    set_up(kernel);
    blockDim = kernel.shape.block;
    gridDim = kernel.shape.grid;
    const uint64_t clusters = uint64_t{gridDim.x} / kernel.shape.cluster * gridDim.y * gridDim.z;
    const Sequence sequence(order, clusters, random_);
    for (uint64_t i = 0; i < clusters; ++i) run_cluster(sequence[i], producer);
    if (kernel.shape.overlaps && producer != nullptr && !any_waited_)
      throw_device("a kernel was launched to overlap with the one in front and never waited for it");
  } catch (...) {
    restore();
    throw;
  }
  restore();
}

void Group::run_cluster(uint64_t number, const Kernel* producer) {
  const unsigned cluster = kernel_->shape.cluster;
  const uint64_t across = gridDim.x / cluster;
  const Sequence lanes(order_, kWaveSize, random_);
  for (int p = 0; p < kWaveSize; ++p) {
    lane_at_[static_cast<size_t>(p)] = static_cast<int>(lanes[static_cast<uint64_t>(p)]);
    position_of_[lanes[static_cast<uint64_t>(p)]] = p;
  }
  const Sequence wave_order(order_, waves_.size(), random_);
  wave_order_.clear();
  for (size_t i = 0; i < waves_.size(); ++i) wave_order_.push_back(wave_order[i]);
  current_wave_ = wave_order_[0];
  cluster_arrived_ = 0;
  cluster_phase_ = 0;

  auto* const arenas = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(arenas_.data()) + 511) / 512 * 512);
  const size_t waves_per_block = waves_.size() / cluster;
  for (unsigned b = 0; b < cluster; ++b) {
    Block& block = blocks_[b];
    block = {};
    block.index = {static_cast<unsigned>(number % across * cluster + b),
                   static_cast<unsigned>(number / across % gridDim.y),
                   static_cast<unsigned>(number / across / gridDim.y)};
    std::byte* const arena = arenas + b * kArenaBytes;
    block.shared = arena + kGuardBytes + kMisalign;
    const size_t used = (shared_end() + 15) / 16 * 16 + 2 * kGuardBytes;
    unpoison(arena, kArenaBytes);
    std::memset(arena, static_cast<int>(kGuard), kGuardBytes + kMisalign + used);
    std::memset(block.shared, static_cast<int>(kPoison), dynamic_bytes_);
    poison(arena, kGuardBytes + kMisalign);
    poison(block.shared + dynamic_bytes_, arena + kArenaBytes - block.shared - static_cast<ptrdiff_t>(dynamic_bytes_));
    for (const StaticArray& array : statics_) {
      unpoison(block.shared + array.offset, array.bytes);
      std::memset(block.shared + array.offset, static_cast<int>(kPoison), array.bytes);
    }
    for (size_t w = 0; w < waves_per_block; ++w) {
      Wave& wave = waves_[b * waves_per_block + w];
      const int in_block = static_cast<int>(w) * kWaveSize;
      wave.block = static_cast<int>(b);
      wave.first = static_cast<int>(b) * threads_ + in_block;
      wave.lanes = std::min(kWaveSize, threads_ - in_block);
      wave.arrived = wave.done = 0;
      wave.ready = 0;
      for (int lane = 0; lane < wave.lanes; ++lane) {
        Fiber& fiber = fibers_[static_cast<size_t>(wave.first + lane)];
        const auto t = static_cast<unsigned>(in_block + lane);
        fiber.stack = -1;
        fiber.block = static_cast<int>(b);
        fiber.wave = static_cast<int>(b * waves_per_block + w);
        fiber.lane = lane;
        fiber.thread = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
        fiber.state = State::kNew;
        fiber.waited = false;
        fiber.cluster_phase = 0;
        fiber.committed = 0;
        fiber.copies.clear();
        wave.ready |= uint64_t{1} << position_of_[static_cast<size_t>(lane)];
      }
    }
  }

  Fiber* fiber = next();
  while (fiber != nullptr) {
    select(*fiber);
    switch_to(main_, fiber->context);
    if (error_ != nullptr) std::rethrow_exception(error_);
    if (wants_producer_) {
      wants_producer_ = false;
      producer_ = nullptr;
      fiber = running_;
      simt::run(*producer, order_, random_());
    } else {
      fiber = next();
    }
  }
  if (std::ranges::any_of(fibers_, [](const Fiber& f) { return f.state != State::kDone; })) report_deadlock();
  check_guards();
}

// The fiber runs next: gives it a stack when it is new, and sets what kernels see.
void Group::select(Fiber& fiber) {
  if (fiber.state == State::kNew) {
    fiber.stack = free_stacks_.back();
    free_stacks_.pop_back();
    fiber.context = start_of(stacks_->bottom(static_cast<size_t>(fiber.stack)), &Group::enter);
  }
  running_ = &fiber;
  fiber.state = State::kReady;
  threadIdx = fiber.thread;
  blockIdx = block_of(fiber).index;
}

Fiber* Group::next() {
  if (order_ == Order::kShuffled && ++picks_ % 8 == 0) current_wave_ = random_() % waves_.size();
  if (waves_[current_wave_].ready == 0) {
    const size_t start = order_ == Order::kShuffled ? random_() % waves_.size() : 0;
    size_t i = 0;
    while (i < waves_.size() && waves_[wave_order_[(i + start) % waves_.size()]].ready == 0) ++i;
    if (i == waves_.size()) return nullptr;
    current_wave_ = wave_order_[(i + start) % waves_.size()];
  }
  Wave& wave = waves_[current_wave_];
  const int position = std::countr_zero(wave.ready);
  wave.ready &= wave.ready - 1;
  return &fibers_[static_cast<size_t>(wave.first + lane_at_[static_cast<size_t>(position)])];
}

void Group::make_ready(Fiber& fiber) {
  fiber.state = State::kReady;
  wave_of(fiber).ready |= uint64_t{1} << position_of_[static_cast<size_t>(fiber.lane)];
}

void Group::yield() {
  Fiber& mine = *running_;
  Fiber* const other = next();
  if (other == &mine) return;
  if (other == nullptr) {
    switch_to(mine.context, main_);
  } else {
    select(*other);
    switch_to(mine.context, other->context);
  }
}

void Group::enter() {
  Group& group = *active;
  arrived_from(group.main_);
  while (true) {
    try {
      group.run_thread();
    } catch (...) {
      group.error_ = std::current_exception();
      switch_to(group.running_->context, group.main_);
    }
    // The next thread that has not begun goes on this stack.
    Fiber& mine = *group.running_;
    Fiber* const other = group.next();
    if (other == nullptr) {
      group.free_stacks_.push_back(mine.stack);
      switch_to(mine.context, group.main_);
    } else if (other->state == State::kNew) {
      other->stack = mine.stack;
      group.running_ = other;
      other->state = State::kReady;
      threadIdx = other->thread;
      blockIdx = group.block_of(*other).index;
    } else {
      group.free_stacks_.push_back(mine.stack);
      group.select(*other);
      switch_to(mine.context, other->context);
    }
  }
}

void Group::run_thread() {
  kernel_->body();
  Fiber& mine = *running_;
  if (!stacks_->intact(static_cast<size_t>(mine.stack)))
    throw_device("a kernel's thread needs more than {} kB of stack", Stacks::kBytes >> 10);
  mine.state = State::kDone;
  Wave& wave = wave_of(mine);
  Block& block = block_of(mine);
  ++wave.done;
  ++block.done;
  if (wave.arrived > 0)
    fail(wave.at, fmt::format("{} of {} lanes came to {}, and one has ended", wave.arrived, wave.lanes, wave.name));
  if (block.arrived > 0)
    fail(block.at, fmt::format("{} of {} threads wait at the barrier, and one has ended", block.arrived, threads_));
}

void Group::report_deadlock() const {
  for (const Fiber& fiber : fibers_) {
    if (fiber.state == State::kDone) continue;
    const Block& block = blocks_[static_cast<size_t>(fiber.block)];
    blockIdx = block.index;
    threadIdx = fiber.thread;
    const Wave& wave = waves_[static_cast<size_t>(fiber.wave)];
    if (fiber.state == State::kAtWave)
      fail(fiber.at, fmt::format("only {} of {} lanes come to {}", wave.arrived, wave.lanes, wave.name));
    if (fiber.state == State::kAtBlock)
      fail(fiber.at, fmt::format("only {} of {} threads come to the barrier", block.arrived, threads_));
    fail(fiber.at, "not every thread of the cluster comes to its barrier");
  }
  throw_device("a kernel has stopped");
}

void Group::check_guards() const {
#ifndef __SANITIZE_ADDRESS__
  const auto damaged = [](const std::byte* p, size_t bytes) {
    return std::any_of(p, p + bytes, [](std::byte byte) { return byte != kGuard; });
  };
  for (const Block& block : blocks_) {
    const size_t dynamic_end = (dynamic_bytes_ + 15) / 16 * 16;
    bool bad = damaged(block.shared - kGuardBytes - kMisalign, kGuardBytes + kMisalign) ||
               damaged(block.shared + dynamic_bytes_, dynamic_end - dynamic_bytes_ + kGuardBytes);
    for (const StaticArray& array : statics_)
      bad = bad || damaged(block.shared + array.offset + array.bytes, kGuardBytes);
    if (bad) {
      throw_device("block {}, {}, {} wrote to shared memory outside its arrays", block.index.x, block.index.y,
                   block.index.z);
    }
  }
#endif
}

void Group::wave_collective(const char* name, void* mine, void (*combine)(void* const*), const Here& at) {
  Fiber& fiber = *running_;
  Wave& wave = wave_of(fiber);
  if (wave.lanes != kWaveSize)
    fail(at, fmt::format("{} in a wave of {} lanes instead of {}", name, wave.lanes, kWaveSize));
  if (wave.done > 0) fail(at, fmt::format("{} after {} lanes of the wave have ended", name, wave.done));
  if (wave.arrived == 0) {
    wave.name = name;
    wave.at = at;
  } else if (!same_text(wave.name, name) || !same_place(wave.at, at)) {
    fail(at, fmt::format("{} while other lanes of the wave are in {} at {}", name, wave.name, place(wave.at)));
  }
  wave.slots[static_cast<size_t>(fiber.lane)] = mine;
  fiber.at = at;
  if (++wave.arrived < wave.lanes) {
    fiber.state = State::kAtWave;
    yield();
    return;
  }
  wave.arrived = 0;
  combine(wave.slots.data());
  for (int lane = 0; lane < wave.lanes; ++lane) {
    Fiber& other = fibers_[static_cast<size_t>(wave.first + lane)];
    if (&other != &fiber) make_ready(other);
  }
}

void Group::block_barrier(const Here& at) {
  Fiber& fiber = *running_;
  Block& block = block_of(fiber);
  if (block.done > 0) fail(at, fmt::format("a barrier after {} of {} threads have ended", block.done, threads_));
  if (block.arrived == 0) {
    block.at = at;
  } else if (!same_place(block.at, at)) {
    fail(at, fmt::format("a barrier while other threads wait at {}", place(block.at)));
  }
  fiber.at = at;
  fiber.state = State::kAtBlock;
  if (++block.arrived == threads_) {
    block.arrived = 0;
    const auto first = static_cast<size_t>(fiber.block * threads_);
    for (size_t i = 0; i < static_cast<size_t>(threads_); ++i) make_ready(fibers_[first + i]);
    current_wave_ = wave_order_[0];
  }
  yield();
}

void Group::cluster_arrive() {
  running_->cluster_phase = cluster_phase_ + 1;
  if (++cluster_arrived_ < static_cast<int>(fibers_.size())) return;
  cluster_arrived_ = 0;
  ++cluster_phase_;
  for (Fiber& fiber : fibers_) {
    if (fiber.state == State::kAtCluster) make_ready(fiber);
  }
}
void Group::cluster_wait(const Here& at) {
  Fiber& fiber = *running_;
  if (fiber.cluster_phase == 0) fail(at, "a wait for the cluster without an arrival before it");
  if (fiber.cluster_phase <= cluster_phase_) return;
  fiber.at = at;
  fiber.state = State::kAtCluster;
  yield();
}

void* Group::peer_shared(void* mine, unsigned rank) {
  const Block& block = block_of(*running_);
  TENDON_CHECK(rank < blocks_.size(), "block {} of a cluster of {}", rank, blocks_.size());
  return blocks_[rank].shared + (static_cast<std::byte*>(mine) - block.shared);
}

void* Group::static_shared(const char* name, size_t bytes, const Here& at) {
  const Block& block = block_of(*running_);
  for (const StaticArray& array : statics_) {
    if (array.line == at.line() && array.name == name && array.file == at.file_name())
      return block.shared + array.offset;
  }
  const size_t offset = (shared_end() + 15) / 16 * 16 + kGuardBytes;
  if (offset + bytes + kGuardBytes + kMisalign > kArenaBytes)
    fail(at, fmt::format("{} bytes of shared memory are more than a block can have", offset + bytes));
  for (const Block& other : blocks_) {
    unpoison(other.shared + offset, bytes);
    std::memset(other.shared + offset, static_cast<int>(kPoison), bytes);
    unpoison(other.shared + offset + bytes, kGuardBytes);
    std::memset(other.shared + offset + bytes, static_cast<int>(kGuard), kGuardBytes);
    poison(other.shared + offset + bytes, kGuardBytes);
  }
  statics_.push_back({name, at.file_name(), at.line(), offset, bytes});
  return block.shared + offset;
}

void Group::check_shared(const void* p, size_t bytes, size_t alignment, const char* what, const Here& at) {
  const auto* const at_byte = static_cast<const std::byte*>(p);
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0)
    fail(at, fmt::format("{} is not {}-byte aligned", what, alignment));
  const std::byte* const base = block_of(*running_).shared;
  const auto inside = [&](size_t offset, size_t size) {
    return at_byte >= base + offset && at_byte + bytes <= base + offset + size;
  };
  if (inside(0, dynamic_bytes_)) return;
  for (const StaticArray& array : statics_) {
    if (inside(array.offset, array.bytes)) return;
  }
  fail(at, fmt::format("{} is outside the block's shared memory", what));
}

void Group::copy_async(void* to, const void* from, unsigned bytes, unsigned valid_bytes, const Here& at) {
  check_shared(to, bytes, bytes, "the target of an asynchronous copy", at);
  if (valid_bytes > 0 && reinterpret_cast<uintptr_t>(from) % bytes != 0)
    fail(at, fmt::format("the source of an asynchronous copy is not {}-byte aligned", bytes));
  std::memset(to, static_cast<int>(kPoison), bytes);
  if (bytes % 8 == 0) poison(to, bytes);
  running_->copies.push_back({to, from, bytes, valid_bytes, running_->committed});
}

void Group::copy_wait(unsigned pending_groups) {
  Fiber& fiber = *running_;
  size_t left = 0;
  for (const PendingCopy& copy : fiber.copies) {
    if (copy.group + pending_groups >= fiber.committed) {
      fiber.copies[left++] = copy;
      continue;
    }
    unpoison(copy.to, copy.bytes);
    if (copy.valid_bytes > 0) std::memcpy(copy.to, copy.from, copy.valid_bytes);
    std::memset(static_cast<std::byte*>(copy.to) + copy.valid_bytes, 0, copy.bytes - copy.valid_bytes);
  }
  fiber.copies.resize(left);
}

void Group::wait_for_producers() {
  running_->waited = true;
  any_waited_ = true;
  if (producer_ == nullptr) return;
  wants_producer_ = true;
  switch_to(running_->context, main_);
}

}  // namespace

void run(const Kernel& kernel, Order order, uint64_t seed, const Kernel* producer) {
  if (groups().size() <= depth) groups().push_back(std::make_unique<Group>());
  groups()[depth]->run(kernel, order, seed, producer);
}

void wave_collective(const char* name, void* mine, void (*combine)(void* const*), const Here& at) {
  here().wave_collective(name, mine, combine, at);
}
void block_barrier(const Here& at) { here().block_barrier(at); }
void cluster_arrive() { here().cluster_arrive(); }
void cluster_wait(const Here& at) { here().cluster_wait(at); }
unsigned cluster_rank() { return here().cluster_rank(); }
void* peer_shared(void* mine, unsigned rank) { return here().peer_shared(mine, rank); }
void* dynamic_shared() { return here().dynamic_shared(); }
void* static_shared(const char* name, size_t bytes, const Here& at) { return here().static_shared(name, bytes, at); }
void check_shared(const void* p, size_t bytes, size_t alignment, const char* what, const Here& at) {
  here().check_shared(p, bytes, alignment, what, at);
}
void copy_async(void* to, const void* from, unsigned bytes, unsigned valid_bytes, const Here& at) {
  here().copy_async(to, from, bytes, valid_bytes, at);
}
void copy_commit() { here().copy_commit(); }
void copy_wait(unsigned pending_groups) { here().copy_wait(pending_groups); }
void wait_for_producers() { here().wait_for_producers(); }

}  // namespace tendon::simt
