#include "backend/gpu/gpu_backend.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "backend/gpu/halves.h"
#include "backend/gpu/kernels.h"
#include "backend/gpu/op_table.h"
#include "backend/gpu/product_trial.h"
#include "base/check.h"

namespace tendon::gpu {
namespace {

void* allocate_or_throw(Runtime& runtime, size_t bytes) {
  void* const memory = runtime.allocate(bytes);
  if (memory == nullptr) {
    throw_device(
        "Not enough memory on the card: {} MB are needed at once and {} MB are free. Close other programs on it, or "
        "use a smaller batch.",
        (bytes >> 20) + 1, runtime.info().free_bytes >> 20);
  }
  return memory;
}

// Device memory that executables share, by key.
class SharedMemory {
 public:
  explicit SharedMemory(Runtime& runtime) : runtime_(runtime) {}
  std::shared_ptr<void> get(const void* key, size_t bytes, const std::function<void(void*)>& fill) {
    std::weak_ptr<void>& known = blocks_[key];
    if (std::shared_ptr<void> block = known.lock()) return block;
    const std::shared_ptr<void> block(allocate_or_throw(runtime_, bytes),
                                      [this](void* memory) { runtime_.release(memory); });
    fill(block.get());
    known = block;
    return block;
  }

 private:
  Runtime& runtime_;
  std::map<const void*, std::weak_ptr<void>> blocks_;
};

// Two points in the stream's work, and the time between them.
struct Clock {
  explicit Clock(Runtime& runtime) : begin(runtime.make_event()), end(runtime.make_event()) {}
  std::unique_ptr<Event> begin, end;
};

// Consecutive operations as a graph of their own, for measurements.
struct Piece {
  size_t first, last;            // operations
  std::unique_ptr<Graph> graph;  // null without graphs
  Clock clock;
};

// The transfers and operations as one captured graph; run one by one, with events between them, when times are asked
// for.
class GpuExecutable final : public Executable {
 public:
  // Sets parts.graph to false when capture fails: this plan and later ones are launched kernel by kernel.
  GpuExecutable(const std::vector<Op>& ops, GpuBackendParts& parts, const Products& products, SharedMemory& shared,
                StreamsOfHalves& streams, void* workspace, const Transfers& transfers)
      : name_(parts.name), runtime_(*parts.runtime), streams_(streams), transfers_(transfers) {
    try {
      prepare(ops, parts, products, shared, workspace);
    } catch (...) {
      release_buffers();
      throw;
    }
  }

  ~GpuExecutable() override { release_buffers(); }

  Status run(OpTimes* times) noexcept override {
    try {
      if (times != nullptr) {
        run_timed(*times);
        return Status::ok();
      }
      if (clock_) runtime_.record(*clock_->begin);
      run_all();
      if (clock_) runtime_.record(*clock_->end);
      runtime_.synchronize();
      if (clock_) device_us_ = runtime_.elapsed_us(*clock_->begin, *clock_->end);
      return Status::ok();
    } catch (const std::exception& error) {
      return failed(error);
    }
  }

  std::optional<size_t> device_work() const override { return graph_ != nullptr ? graph_->size() : std::nullopt; }

  void time_device(bool on) override {
    device_us_.reset();
    clock_.reset();
    if (on) clock_.emplace(runtime_);
  }
  std::optional<double> device_us() const override { return device_us_; }

  Status run_pieces(std::span<const size_t> ends, std::span<double> us) noexcept override {
    try {
      if (pieces_.size() != us.size() || !std::ranges::equal(piece_ends_, ends)) make_pieces(ends, us.size());
      for (const Piece& piece : pieces_) {
        runtime_.record(*piece.clock.begin);
        if (piece.graph != nullptr) {
          piece.graph->launch(runtime_.stream());
        } else {
          launch_some(piece.first, piece.last);
        }
        runtime_.record(*piece.clock.end);
      }
      runtime_.synchronize();
      for (size_t i = 0; i < us.size(); ++i) {
        us[i] = runtime_.elapsed_us(*pieces_[i].clock.begin, *pieces_[i].clock.end);
      }
      return Status::ok();
    } catch (const std::exception& error) {
      return failed(error);
    }
  }

  size_t launch_in_pieces(std::span<const size_t> ends) override {
    runtime_.make_current();
    launched_.clear();
    if (graph_ == nullptr || ends.empty()) return 1;
    std::vector<std::unique_ptr<Graph>> graphs;
    size_t begin = 0;
    for (const size_t end : ends) graphs.push_back(capture(std::exchange(begin, end), end));
    graphs.push_back(capture(begin, launches_.size()));
    runtime_.synchronize();
    launched_ = std::move(graphs);
    return launched_.size();
  }

  // Without a graph, as without streams, nothing overlaps.
  bool split(size_t end_of_front, PreferredHalf preferred) override {
    halves_.reset();
    HalfStreams* const streams = graph_ == nullptr ? nullptr : streams_.get(preferred);
    if (streams == nullptr) return false;
    std::unique_ptr<Graph> front = capture(0, end_of_front);
    halves_.emplace(runtime_, *streams, std::move(front), capture(end_of_front, launches_.size()));
    runtime_.synchronize();
    return true;
  }
  Status start() noexcept override {
    return halves_ ? done([this] { halves_->start(); }) : Executable::start();
  }
  Status finish() noexcept override {
    return halves_ ? done([this] { halves_->finish(); }) : Executable::finish();
  }

 private:
  void prepare(const std::vector<Op>& ops, GpuBackendParts& parts, const Products& products, SharedMemory& shared,
               void* workspace) {
    runtime_.make_current();
    const GpuContext context{.products = products,
                             .workspace = workspace,
                             .allocate =
                                 [this](size_t bytes) {
                                   buffers_.push_back(nullptr);
                                   return buffers_.back() = allocate_or_throw(runtime_, bytes);
                                 },
                             .share =
                                 [&](const void* key, size_t bytes, const std::function<void(void*)>& fill) {
                                   shared_.push_back(shared.get(key, bytes, fill));
                                   return shared_.back().get();
                                 },
                             .stream = runtime_.stream(),
                             .architecture = runtime_.architecture()};
    for (const Op& op : ops) {
      const GpuOp* const row = find_gpu_op(op, parts.own_ops, parts.without);
      TENDON_CHECK(row != nullptr, "the {} backend has no kernel for {} ({})", name_, tendon::describe(op),
                   op_label(op));
      launches_.push_back(row->prepare(op, context));
    }
    runtime_.synchronize();
    launch_all();  // first launches load kernels, which capture must not do
    runtime_.synchronize();
    if (parts.graph) capture_or_warn(parts);
    runtime_.synchronize();
  }

  void capture_or_warn(GpuBackendParts& parts) {
    try {
      graph_ = capture(0, launches_.size());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kDevice) throw;
      parts.graph = false;
      log_warning(parts.log,
                  "{}: {}. Plans are launched kernel by kernel instead of as one graph: the same numbers, but slower "
                  "calls. A newer driver may help; --no-graph silences this.",
                  name_, error.what());
    }
  }

  void run_all() {
    if (!launched_.empty()) {
      for (const std::unique_ptr<Graph>& graph : launched_) graph->launch(runtime_.stream());
    } else if (graph_ != nullptr) {
      graph_->launch(runtime_.stream());
    } else {
      runtime_.make_current();
      launch_all();
    }
  }
  void launch_all() { launch_some(0, launches_.size()); }
  // Operations begin..end, with the transfers that stand before the first and after the last of all.
  void launch_some(size_t begin, size_t end) {
    if (begin == 0) copy_inputs();
    for (size_t i = begin; i < end; ++i) launches_[i](runtime_.stream());
    if (end == launches_.size()) copy_outputs();
  }
  void copy_inputs() {
    const Transfer& t = transfers_.inputs;
    if (t.bytes > 0) launch_copy_octets(t.device, t.host, t.bytes, runtime_.stream());
  }
  void copy_outputs() {
    const Transfer& t = transfers_.outputs;
    if (t.bytes > 0) launch_copy_octets(t.host, t.device, t.bytes, runtime_.stream());
  }

  std::unique_ptr<Graph> capture(size_t begin, size_t end) {
    runtime_.begin_capture();
    try {
      launch_some(begin, end);
      return runtime_.end_capture();
    } catch (...) {
      runtime_.abandon_capture();
      throw;
    }
  }

  void make_pieces(std::span<const size_t> ends, size_t count) {
    runtime_.make_current();
    pieces_.clear();
    piece_ends_.assign(ends.begin(), ends.end());
    size_t begin = 0;
    for (size_t i = 0; i < count; ++i) {
      const size_t end = i < ends.size() ? std::min(ends[i], launches_.size()) : launches_.size();
      const size_t last = std::max(begin, end);
      pieces_.push_back({begin, last, graph_ == nullptr ? nullptr : capture(begin, last), Clock(runtime_)});
      begin = last;
    }
  }

  void run_timed(OpTimes& times) {
    runtime_.make_current();
    while (events_.size() < launches_.size() + 1) events_.push_back(runtime_.make_event());
    copy_inputs();
    runtime_.record(*events_[0]);
    for (size_t i = 0; i < launches_.size(); ++i) {
      if (times.before_op) times.before_op(i);
      launches_[i](runtime_.stream());
      runtime_.record(*events_[i + 1]);
    }
    copy_outputs();
    runtime_.synchronize();
    times.start_us.assign(launches_.size(), 0.0);
    times.duration_us.assign(launches_.size(), 0.0);
    for (size_t i = 0; i < launches_.size(); ++i) {
      times.start_us[i] = runtime_.elapsed_us(*events_[0], *events_[i]);
      times.duration_us[i] = runtime_.elapsed_us(*events_[i], *events_[i + 1]);
    }
  }

  void release_buffers() {
    for (void* buffer : buffers_) runtime_.release(buffer);
  }

  template <class Work>
  Status done(const Work& work) const noexcept {
    try {
      work();
      return Status::ok();
    } catch (const std::exception& error) {
      return failed(error);
    }
  }
  Status failed(const std::exception& error) const noexcept {
    return Status::error(StatusCode::kDevice, "%s: %s", name_.c_str(), error.what());
  }

  std::string name_;
  Runtime& runtime_;
  StreamsOfHalves& streams_;
  Transfers transfers_;
  std::vector<Launch> launches_;
  std::vector<void*> buffers_;
  std::vector<std::shared_ptr<void>> shared_;
  std::vector<std::unique_ptr<Event>> events_;
  std::unique_ptr<Graph> graph_;
  std::vector<std::unique_ptr<Graph>> launched_;  // in its place
  std::optional<Halves> halves_;
  std::optional<Clock> clock_;
  std::optional<double> device_us_;
  std::vector<size_t> piece_ends_;
  std::vector<Piece> pieces_;
};

class GpuBackend final : public Backend, public gemm::TuneTarget {
 public:
  explicit GpuBackend(GpuBackendParts parts)
      : parts_(std::move(parts)),
        table_(parts_.table ? fmt::format("{}, {} rows", parts_.table->name(), parts_.table->rows().size()) : "none"),
        products_(*parts_.runtime, parts_.library.get(), parts_.special.get(), std::move(parts_.table)),
        shared_(*parts_.runtime),
        streams_(*parts_.runtime) {}

  std::string_view name() const override { return parts_.name; }
  DeviceInfo info() const override {
    DeviceInfo info = parts_.runtime->info();
    info.library = parts_.library != nullptr ? parts_.library->version() : "none: products run on tendon's own kernels";
    info.gemm_table = table_;
    return info;
  }
  DeviceSensors sensors() const override { return parts_.runtime->sensors(); }
  TracerOrReason make_tracer() override { return parts_.runtime->make_tracer(); }

  bool supports(const Op& op) const override { return find_gpu_op(op, parts_.own_ops, parts_.without) != nullptr; }
  std::string kernel_name(const Op& op) const override {
    const GpuOp& found = row(op);
    if (found.product == nullptr) return found.kernel;
    return fmt::format("{} ({})", found.kernel, products_.kernel_name(found.product(op)));
  }
  size_t workspace_bytes(const Op& op) const override { return row(op).workspace_bytes(op); }
  std::unique_ptr<Executable> prepare(std::vector<Op> ops, void* workspace, size_t,
                                      const Transfers& transfers) override {
    return std::make_unique<GpuExecutable>(ops, parts_, products_, shared_, streams_, workspace, transfers);
  }

  void* allocate(size_t bytes) override { return allocate_or_throw(*parts_.runtime, bytes); }
  void release(void* memory) noexcept override { parts_.runtime->release(memory); }
  void upload(void* device, const void* host, size_t bytes) override {
    parts_.runtime->copy_to_device(device, host, bytes);
    parts_.runtime->synchronize();
  }
  void begin_upload(void* device, const void* host, size_t bytes) override {
    parts_.runtime->copy_to_device(device, host, bytes);
  }
  void finish_uploads() override { parts_.runtime->synchronize(); }
  bool fill_by_rule(const Tensor& device, const ValueRule& rule) override {
    parts_.runtime->make_current();
    launch_value_rule(device, rule, parts_.runtime->stream());
    return true;
  }
  void download(void* host, const void* device, size_t bytes) override {
    parts_.runtime->copy_to_host(host, device, bytes);
    parts_.runtime->synchronize();
  }
  void fill_zero(void* device, size_t bytes) override {
    parts_.runtime->fill_zero(device, bytes);
    parts_.runtime->synchronize();
  }
  void* allocate_host(size_t bytes) override {
    void* const memory = parts_.runtime->allocate_host(bytes);
    if (memory == nullptr) {
      throw_device("Not enough page-locked host memory: {} MB are needed at once. Close other programs.",
                   (bytes >> 20) + 1);
    }
    return memory;
  }
  void release_host(void* memory) noexcept override { parts_.runtime->release_host(memory); }
  bool uses_host_memory() const override { return false; }

  gemm::TuneTarget* tune_target() override { return this; }
  std::optional<gemm::Desc> product_of(const Op& op) const override {
    const GpuOp* const found = find_gpu_op(op, parts_.own_ops, parts_.without);
    if (found == nullptr || found->product == nullptr) return {};
    return describe(found->product(op));
  }
  std::unique_ptr<gemm::Trial> make_trial(const gemm::Desc& desc) override {
    return make_product_trial(desc, *parts_.runtime, products_);
  }

 private:
  const GpuOp& row(const Op& op) const {
    const GpuOp* const found = find_gpu_op(op, parts_.own_ops, parts_.without);
    TENDON_CHECK(found != nullptr, "the {} backend has no kernel for {} ({})", parts_.name, tendon::describe(op),
                 op_label(op));
    return *found;
  }

  GpuBackendParts parts_;
  std::string table_;
  Products products_;
  SharedMemory shared_;
  StreamsOfHalves streams_;
};

}  // namespace

std::unique_ptr<Backend> make_gpu_backend(GpuBackendParts parts) {
  return std::make_unique<GpuBackend>(std::move(parts));
}

}  // namespace tendon::gpu
