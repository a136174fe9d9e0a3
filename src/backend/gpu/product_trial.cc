#include "backend/gpu/product_trial.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "backend/gpu/kernels.h"
#include "base/check.h"

namespace tendon::gpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Weights are read in turn from copies that together exceed twice the second-level cache of any card.
constexpr size_t kColdBytes = size_t{160} << 20;
constexpr int kMostCopies = 48;
constexpr int kRunsInGraph = 20;
// A kernel that takes longer than a millisecond needs fewer runs to be told from its neighbours, and fewer samples.
constexpr double kGraphUs = 20e3;
constexpr double kMostUs = 15 * kGraphUs;  // of all samples together

bool has_word(const std::string& epilogue, const std::string& word) {
  return ("+" + epilogue + "+").find("+" + word + "+") != std::string::npos;
}

// Of the heads in a product with a rotation: eight or no heads of q, one of keys and one of values, 256 wide each.
constexpr int64_t kHead = 256;

class ProductTrial final : public gemm::Trial {
 public:
  ProductTrial(const gemm::Desc& d, Runtime& runtime, const Products& products)
      : runtime_(runtime), products_(products) {
    try {
      make_buffers(d);
    } catch (...) {
      release();
      throw;
    }
  }
  ~ProductTrial() override { release(); }

  std::vector<std::string> candidates() override { return products_.candidates(copies_[0]); }

  double error(const std::string& kernel) override {
    Product p = copies_[0];
    p.out = result_;
    if (p.rope.defined()) set_targets(p.rope, result_);
    ScopedMemory extra(*this);
    try {
      const Launch launch = products_.prepare_kernel(p, kernel, extra.memory());
      if (!launch) return kInfinity;
      runtime_.fill_zero(result_.data, result_.bytes());
      runtime_.fill_zero(worst_, sizeof(float));
      launch(runtime_.stream());
      launch_largest_difference(result_, reference_, relative_, absolute_, worst_, runtime_.stream());
      float worst = 0;
      runtime_.copy_to_host(&worst, worst_, sizeof(worst));
      runtime_.synchronize();
      return static_cast<double>(worst);
    } catch (const Error&) {
      return kInfinity;
    }
  }

  double time_us(const std::string& kernel, double limit_us, bool careful) override {
    ScopedMemory extra(*this);
    std::vector<Launch> launches;
    for (const Product& p : copies_) launches.push_back(products_.prepare_kernel(p, kernel, extra.memory()));
    const std::unique_ptr<Event> begin = runtime_.make_event();
    const std::unique_ptr<Event> end = runtime_.make_event();
    const auto measured_us = [&](const auto& launch) {
      runtime_.record(*begin);
      launch(runtime_.stream());
      runtime_.record(*end);
      runtime_.synchronize();
      return runtime_.elapsed_us(*begin, *end);
    };
    const double first_us = measured_us(launches[0]);
    const int most_runs = std::max<int>(kRunsInGraph, static_cast<int>(copies_.size()));
    const int runs = std::clamp(static_cast<int>(kGraphUs / std::max(first_us, 1.0)), 1, most_runs);
    runtime_.begin_capture();
    std::unique_ptr<Graph> graph;
    try {
      for (int i = 0; i < runs; ++i) launches[static_cast<size_t>(i) % launches.size()](runtime_.stream());
      graph = runtime_.end_capture();
    } catch (...) {
      runtime_.abandon_capture();
      throw;
    }
    std::vector<double> samples;
    double spent_us = 0.0;
    // Until the middle half of the samples agrees to 1 %.
    const size_t least = careful ? 9 : 4;
    const size_t most = careful ? 40 : 10;
    for (;;) {
      const double graph_us = measured_us([&](Stream stream) { graph->launch(stream); });
      samples.push_back(graph_us / runs);
      spent_us += graph_us;
      std::ranges::sort(samples);
      const double median = samples[samples.size() / 2];
      const double spread = samples[samples.size() * 3 / 4] - samples[samples.size() / 4];
      if (samples.size() >= 2 && samples[0] > limit_us) return median;
      if (samples.size() >= most || spent_us > kMostUs) return median;
      if (samples.size() >= least && spread < 0.01 * median) return median;
    }
  }

 private:
  // Small buffers that preparing asks for, of one candidate.
  class ScopedMemory {
   public:
    explicit ScopedMemory(ProductTrial& trial) : trial_(trial), kept_(trial.buffers_.size()) {}
    ~ScopedMemory() {
      while (trial_.buffers_.size() > kept_) {
        trial_.runtime_.release(trial_.buffers_.back());
        trial_.buffers_.pop_back();
      }
    }
    ScopedMemory(const ScopedMemory&) = delete;
    ScopedMemory& operator=(const ScopedMemory&) = delete;
    ProductMemory memory() {
      return {.scratch = trial_.scratch_, .allocate = [this](size_t bytes) { return trial_.allocate(bytes); }};
    }

   private:
    ProductTrial& trial_;
    size_t kept_;
  };

  void* allocate(size_t bytes) {
    void* const memory = runtime_.allocate(std::max<size_t>(bytes, 256));
    if (memory == nullptr) throw_device("Not enough memory on the card to measure a product ({} MB).", bytes >> 20);
    buffers_.push_back(memory);
    return memory;
  }
  Tensor random(DType dtype, const Shape& shape, float scale) {
    Tensor t(dtype, shape, nullptr);
    bind(t, shape, allocate(buffer_bytes(dtype, shape)));
    if (is_scaled(dtype)) {
      launch_cast({.x = random(DType::kBf16, shape, scale), .out = t}, runtime_.stream());
      return t;
    }
    launch_random(t.reshaped({t.elements() / t.cols(), t.cols()}), ++seed_, scale, runtime_.stream());
    return t;
  }

  void make_buffers(const gemm::Desc& d) {
    runtime_.make_current();
    const bool gate_up = d.epilogue == "gelu_mul";
    // bf16: one and a half units in the last place, for a sum in another order may be rounded to the other side. Where
    // the sum is rounded before it is added, multiplied or rotated, which a library may leave out, its unit is that of
    // the largest sums, about 6. f32: far below what computing in TF32 would be off by.
    const bool rope = d.epilogue == "rope";
    const bool inner_rounding = gate_up || rope || has_word(d.epilogue, "residual") || has_word(d.epilogue, "gated");
    if (d.out == DType::kF32) {
      relative_ = 1e-5F, absolute_ = 1e-4F;
    } else {
      relative_ = inner_rounding ? 0x1p-5F : 0x1.8p-7F;
      absolute_ = inner_rounding ? 0x1p-5F : 0x1p-8F;
    }
    Product p;
    p.x = random(d.x, {d.m, d.k}, 1.0F);
    p.out = random(d.out, {d.m, d.n}, 1.0F);
    if (rope) add_rope(d, p);
    result_ = random(d.out, {d.m, d.n}, 1.0F);
    reference_ = random(d.out, {d.m, d.n}, 1.0F);
    worst_ = static_cast<float*>(allocate(sizeof(float)));
    if (has_word(d.epilogue, "bias")) {  // of bf16 values, as bf16 checkpoints have them
      p.bias = random(DType::kF32, {d.n}, 0.5F);
      const Tensor rounded = random(DType::kBf16, {1, d.n}, 0.5F);
      launch_cast({.x = rounded, .out = p.bias.reshaped({1, d.n})}, runtime_.stream());
    }
    if (has_word(d.epilogue, "table")) p.table = random(DType::kF32, {std::min<int64_t>(d.m, 256), d.n}, 1.0F);
    if (has_word(d.epilogue, "residual") || has_word(d.epilogue, "gated")) p.residual = random(d.out, {d.m, d.n}, 1.0F);
    if (has_word(d.epilogue, "gated")) p.gate = random(DType::kF32, {d.n}, 1.0F);
    if (has_word(d.epilogue, "gelu")) p.activation = Activation::kGeluTanh;
    if (has_word(d.epilogue, "silu")) p.activation = Activation::kSilu;

    const Shape stacked_shape = {gate_up ? 2 * d.n : d.n, d.k};
    const size_t weight_bytes = Tensor(d.w, stacked_shape).bytes();
    const int copies = static_cast<int>(std::clamp<size_t>(kColdBytes / weight_bytes + 1, 1, kMostCopies));
    for (int i = 0; i < copies; ++i) {
      const Tensor w = random(d.w, stacked_shape, 1.0F / std::sqrt(static_cast<float>(d.k)));
      p.w = w.row_range(0, d.n);
      if (gate_up) p.up = w.row_range(d.n, d.n);
      copies_.push_back(p);
    }
    scratch_ = allocate(product_scratch_bytes(p));
    make_reference();
  }

  // The first copy on the plain tile, rotated by a kernel of its own.
  void make_reference() {
    Product plain = copies_[0];
    plain.rope = {};
    plain.out = copies_[0].rope.defined() ? random(reference_.dtype, reference_.shape, 1.0F) : reference_;
    launch_product(plain, {.tile = plain_tile(), .splits = 1}, nullptr, runtime_.stream());
    if (copies_[0].rope.defined()) {
      RopeTail rope = copies_[0].rope;
      set_targets(rope, reference_);
      launch_rope_cache(rope, plain.out, runtime_.stream());
    }
    runtime_.synchronize();
  }

  // q, keys and values side by side in one matrix.
  static void set_targets(RopeTail& rope, const Tensor& matrix) {
    const int64_t q_cols = matrix.cols() - 2 * kHead;
    rope.q = q_cols > 0 ? matrix.col_range(0, q_cols) : Tensor{};
    rope.k_cache = matrix.col_range(q_cols, kHead);
    rope.v_cache = matrix.col_range(q_cols + kHead, kHead);
  }
  void add_rope(const gemm::Desc& d, Product& p) {
    if (d.n < 2 * kHead || d.n % kHead != 0)
      throw_bad_input(
          "There is no measurement of {}: a rotated product has heads of {} columns, one of keys, one of values.",
          gemm::to_string(d), kHead);
    std::vector<int32_t> rows(static_cast<size_t>(d.m));
    std::iota(rows.begin(), rows.end(), 0);
    p.rope.positions = Tensor(DType::kI32, {d.m}, allocate(rows.size() * sizeof(int32_t)));
    runtime_.copy_to_device(p.rope.positions.data, rows.data(), p.rope.positions.bytes());
    runtime_.synchronize();
    p.rope.cache_rows = p.rope.positions;
    p.rope.table = random(DType::kF32, {d.m, kHead}, 0.5F);
    set_targets(p.rope, random(d.out, {d.m, d.n}, 1.0F));
  }

  void release() {
    for (void* buffer : buffers_) runtime_.release(buffer);
  }

  Runtime& runtime_;
  const Products& products_;
  std::vector<void*> buffers_;
  std::vector<Product> copies_;  // one for each copy of the weights
  Tensor result_, reference_;
  float relative_ = 0, absolute_ = 0;  // allowed difference
  float* worst_ = nullptr;
  void* scratch_ = nullptr;
  uint64_t seed_ = 0;
};

}  // namespace

std::unique_ptr<gemm::Trial> make_product_trial(const gemm::Desc& desc, Runtime& runtime, const Products& products) {
  return std::make_unique<ProductTrial>(desc, runtime, products);
}

}  // namespace tendon::gpu
