#include "backend/sim/sim_runtime.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "backend/sim/sim_stream.h"
#include "base/check.h"

namespace tendon::sim {
namespace {

using Clock = std::chrono::steady_clock;
// A copy from pinned memory, which the card may read as late as it likes.
struct LateCopy {
  void* to;
  const void* from;
  size_t bytes;
};
using Work = std::variant<simt::Kernel, LateCopy, std::function<void()>>;

// The shim's GPU threads share their registers' names (threadIdx, ...) in this process: one kernel at a time.
std::mutex& card_mutex() {
  static std::mutex mutex;
  return mutex;
}

class SimStream {
 public:
  explicit SimStream(const SimOptions& options) : options_(options) {
    hold_next_ = options.order != simt::Order::kReverse;
  }

  void submit(Work work) {
    if (capturing_here()) {
      if (lost_) throw_device("launching failed: the capture has been invalid since an earlier call");
      if (options_.capture_fault == CaptureFault::kNode && recorded_.size() == options_.failing_node) {
        lost_ = true;
        throw_device("launching failed: ordered fault at node {}", options_.failing_node);
      }
      recorded_.push_back(std::move(work));
    } else if (capturing_) {
      throw_device("another thread launched on a stream that is being captured");
    } else {
      execute(std::move(work));
    }
  }

  // Runs what is held back.
  void finish() {
    for (const LateCopy& copy : held_copies_) std::memcpy(copy.to, copy.from, copy.bytes);
    held_copies_.clear();
    if (!held_) return;
    const simt::Kernel kernel = std::move(*held_);
    held_.reset();
    run(kernel, nullptr);
  }

  void begin() {
    if (capturing_) throw_device("beginning capture failed: the stream is being captured already");
    finish();
    if (options_.capture_fault == CaptureFault::kBegin) throw_device("beginning capture failed: ordered fault");
    capturing_ = true;
    lost_ = false;
    thread_ = std::this_thread::get_id();
    recorded_.clear();
  }
  std::vector<Work> end() {
    if (!capturing_here()) throw_device("ending capture failed: this thread did not begin one");
    capturing_ = false;
    if (options_.capture_fault == CaptureFault::kEnd) throw_device("ending capture failed: ordered fault");
    if (lost_) throw_device("ending capture failed: a call in between made it invalid");
    return std::move(recorded_);
  }
  void abandon() noexcept {
    capturing_ = false;
    recorded_.clear();
  }
  bool capturing_here() const { return capturing_ && thread_ == std::this_thread::get_id(); }
  // Before memory goes: waits for what may use it, as a card's driver does, and forgets what that work did wrong.
  void settle() noexcept {
    if (capturing_here()) lost_ = true;
    if (capturing_) return;
    try {
      finish();
    } catch (const std::exception&) {
    }
  }
  // What no capture may hold.
  void refuse_in_capture(const char* what) {
    if (!capturing_here()) return;
    lost_ = true;
    throw_device("{} failed: operation not permitted when stream is capturing", what);
  }

 private:
  // A kernel is held back until the next one comes. If that overlaps, it starts first, as on a card, and the one in
  // front runs when it is waited for. Then neither is held: every second pair of neighbours is tried this way, which
  // one depends on the order of threads.
  void execute(Work work) {
    auto* const kernel = std::get_if<simt::Kernel>(&work);
    if (const auto* const copy = std::get_if<LateCopy>(&work)) {
      if (held_) finish();
      held_copies_.push_back(*copy);
    } else if (kernel == nullptr) {
      finish();
      std::get<std::function<void()>>(work)();
    } else if (kernel->shape.overlaps && held_) {
      const simt::Kernel front = std::move(*held_);
      held_.reset();
      run(*kernel, &front);
    } else {
      finish();
      if (hold_next_) {
        held_ = std::move(*kernel);
      } else {
        run(*kernel, nullptr);
      }
      hold_next_ = true;
    }
  }
  void run(const simt::Kernel& kernel, const simt::Kernel* front) {
    const std::lock_guard lock(card_mutex());
    simt::run(kernel, options_.order, options_.seed + 977 * runs_++, front);
  }

  SimOptions options_;
  uint64_t runs_ = 0;
  bool hold_next_ = true;
  std::optional<simt::Kernel> held_;  // or copies, not both
  std::vector<LateCopy> held_copies_;
  bool capturing_ = false, lost_ = false;
  std::thread::id thread_;
  std::vector<Work> recorded_;
};

class SimGraph final : public gpu::Graph {
 public:
  SimGraph(std::vector<Work> work, gpu::Counters& counters) : work_(std::move(work)), counters_(counters) {}
  std::optional<size_t> size() const override { return work_.size(); }
  void launch(gpu::Stream stream) override {
    ++counters_.graph_launches;
    run(*reinterpret_cast<SimStream*>(stream));
  }
  void run(SimStream& stream) const {
    for (const Work& work : work_) stream.submit(work);
  }
  const std::vector<Work>& work() const { return work_; }

 private:
  std::vector<Work> work_;
  gpu::Counters& counters_;
};

class SimEvent final : public gpu::Event {
 public:
  Clock::time_point time;
};

// Halves run as late as a card may run them, at the wait for a back; this and the next run's front then take turns,
// kernel by kernel.
class SimHalfStreams final : public gpu::HalfStreams {
 public:
  SimHalfStreams(const SimOptions& options, gpu::Counters& counters)
      : options_(options), counters_(counters), front_stream_(options), back_stream_(options) {}

  void launch(gpu::Graph& front, gpu::Graph& back, gpu::Event& front_end, gpu::Event& back_end) override {
    counters_.graph_launches += 2;
    if (++launches_ == options_.failing_halves) throw_device("launching the graph failed: ordered fault");
    fronts_.push_back({static_cast<SimGraph&>(front), static_cast<SimEvent&>(front_end)});
    backs_.push_back({static_cast<SimGraph&>(back), static_cast<SimEvent&>(back_end)});
  }
  void wait(const gpu::Event& back_end) override {
    ++counters_.synchronisations;
    bool is_done = backs_.empty();
    while (!is_done) {
      Half back = take(backs_);
      if (backs_.size() < fronts_.size()) run(take(fronts_), front_stream_);
      is_done = backs_.empty() || &back.end == &back_end;
      if (fronts_.empty()) {
        run(back, back_stream_);
      } else {
        run_in_turns(take(fronts_), back);
      }
    }
  }

 private:
  struct Half {
    const SimGraph& graph;
    SimEvent& end;
  };
  static Half take(std::deque<Half>& halves) {
    const Half half = halves.front();
    halves.pop_front();
    return half;
  }
  static void run(const Half& half, SimStream& stream) {
    half.graph.run(stream);
    stream.finish();
    half.end.time = Clock::now();
  }
  void run_in_turns(const Half& front, const Half& back) {
    const size_t pieces = std::max(front.graph.work().size(), back.graph.work().size());
    for (size_t i = 0; i < pieces; ++i) {
      if (i < front.graph.work().size()) front_stream_.submit(front.graph.work()[i]);
      if (i < back.graph.work().size()) back_stream_.submit(back.graph.work()[i]);
    }
    front_stream_.finish();
    back_stream_.finish();
    front.end.time = back.end.time = Clock::now();
  }

  const SimOptions& options_;
  gpu::Counters& counters_;
  SimStream front_stream_, back_stream_;
  uint64_t launches_ = 0;
  std::deque<Half> fronts_, backs_;  // a front goes no later than its back
};

class SimRuntime final : public gpu::Runtime {
 public:
  SimRuntime(const SimOptions& options, int device)
      : options_(options), card_(options.machine.cards.at(static_cast<size_t>(device))), stream_(options) {}
  ~SimRuntime() override {
    stream_.settle();
    for (const auto& [memory, bytes] : blocks_) std::free(memory);
  }

  DeviceInfo info() const override {
    const std::lock_guard lock(mutex_);
    return {.name = card_.name,
            .architecture = fmt::format("sm_{}", card_.architecture),
            .memory_bytes = options_.memory_bytes,
            .free_bytes = options_.memory_bytes - used_,
            .threads_or_sms = 2};
  }
  DeviceSensors sensors() const override { return {.missing = "a simulated card has no sensors"}; }
  int architecture() const override { return card_.architecture; }
  gpu::Stream stream() const override { return reinterpret_cast<gpu::Stream>(&stream_); }
  void make_current() override {}

  void* allocate(size_t bytes) override {
    stream_.refuse_in_capture("allocating device memory");
    const std::lock_guard lock(mutex_);
    if (++counters_.allocations == options_.failing_allocation) return nullptr;
    if (bytes > options_.memory_bytes - used_) return nullptr;
    return take(bytes);
  }
  void release(void* memory) noexcept override {
    stream_.settle();
    give_back(memory);
  }
  void* allocate_host(size_t bytes) override {
    stream_.refuse_in_capture("allocating pinned host memory");
    if (++counters_.host_allocations == options_.failing_host_allocation) return nullptr;
    void* const memory = std::aligned_alloc(256, (bytes + 256) / 256 * 256);
    const std::lock_guard lock(mutex_);
    if (memory != nullptr) pinned_.emplace(memory, bytes);
    return memory;
  }
  void release_host(void* memory) noexcept override {
    stream_.settle();
    const std::lock_guard lock(mutex_);
    pinned_.erase(memory);
    std::free(memory);
  }

  void copy_to_device(void* device, const void* host, size_t bytes) override {
    if (++copies_to_device_ == options_.failing_copy) throw_device("copying to the card failed: ordered fault");
    if (bytes > 0 && is_pinned(host)) {
      stream_.submit(LateCopy{device, host, bytes});
    } else {
      copy(device, host, bytes);
    }
  }
  void copy_to_host(void* host, const void* device, size_t bytes) override { copy(host, device, bytes); }
  void fill_zero(void* device, size_t bytes) override {
    if (bytes > 0) stream_.submit([=] { std::memset(device, 0, bytes); });
  }
  void synchronize() override {
    stream_.refuse_in_capture("waiting for the card");
    ++counters_.synchronisations;
    stream_.finish();
  }

  void begin_capture() override {
    ++counters_.captures;
    stream_.begin();
  }
  std::unique_ptr<gpu::Graph> end_capture() override {
    std::vector<Work> work = stream_.end();
    ++counters_.instantiations;
    if (options_.capture_fault == CaptureFault::kInstantiate) throw_device("making the graph failed: ordered fault");
    return std::make_unique<SimGraph>(std::move(work), counters_);
  }
  void abandon_capture() noexcept override { stream_.abandon(); }

  std::unique_ptr<gpu::HalfStreams> make_half_streams(PreferredHalf) override {
    return std::make_unique<SimHalfStreams>(options_, counters_);
  }

  std::unique_ptr<gpu::Event> make_event() override { return std::make_unique<SimEvent>(); }
  void record(gpu::Event& event) override {
    stream_.submit([&time = static_cast<SimEvent&>(event).time] { time = Clock::now(); });
  }
  double elapsed_us(const gpu::Event& from, const gpu::Event& to) override {
    stream_.finish();
    return std::chrono::duration<double, std::micro>(static_cast<const SimEvent&>(to).time -
                                                     static_cast<const SimEvent&>(from).time)
        .count();
  }

 private:
  void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) stream_.submit([=] { std::memcpy(to, from, bytes); });
  }
  bool is_pinned(const void* host) const {
    const std::lock_guard lock(mutex_);
    const auto after = pinned_.upper_bound(host);
    if (after == pinned_.begin()) return false;
    const auto& [begin, bytes] = *std::prev(after);
    return static_cast<const char*>(host) < static_cast<const char*>(begin) + bytes;
  }
  void* take(size_t bytes) {
    void* const memory = std::aligned_alloc(256, (bytes + 256) / 256 * 256);
    if (memory == nullptr) return nullptr;
    std::memset(memory, 0xff, bytes);  // what was never written reads as NaN
    blocks_.emplace(memory, bytes);
    used_ += bytes;
    return memory;
  }
  void give_back(void* memory) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(memory);
    if (found == blocks_.end()) return;
    used_ -= found->second;
    blocks_.erase(found);
    std::free(memory);
  }

  SimOptions options_;
  gpu::Card card_;
  mutable SimStream stream_;
  mutable std::mutex mutex_;
  std::map<void*, size_t> blocks_;
  std::map<const void*, size_t> pinned_;
  size_t used_ = 0;
  uint64_t copies_to_device_ = 0;
};

}  // namespace

void submit(gpu::Stream stream, simt::Kernel kernel) {
  if (stream == nullptr) throw_device("a kernel was launched on the legacy stream");
  reinterpret_cast<SimStream*>(stream)->submit(std::move(kernel));
}
void submit(gpu::Stream stream, std::function<void()> work) {
  if (stream == nullptr) throw_device("work was put on the legacy stream");
  reinterpret_cast<SimStream*>(stream)->submit(std::move(work));
}

std::unique_ptr<gpu::Runtime> make_sim_runtime(const SimOptions& options, int device) {
  return std::make_unique<SimRuntime>(options, device);
}

}  // namespace tendon::sim
