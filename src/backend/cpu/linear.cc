// linear: out = act(x · wᵀ + bias).  x (M, K), w (N, K), bias (N), out (M, N); each f32 or bf16.
//
// Weights are mapped files of up to 6.5 GB, so they are never copied whole: the product runs over chunks of weight
// rows. A bf16 chunk is widened to f32 (exact) in scratch memory that stays in the second-level cache and multiplied by
// oneDNN's f32 kernel; f32 weights are read in place in the same chunks, so that equal weights stored either way give
// identical results. Sums accumulate in f32; bias and activation follow in f32; one rounding at the store.
#include <algorithm>

#include "backend/cpu/op_table.h"
#include "backend/cpu/vector_math.h"

namespace tendon {
namespace {

// Rows of one chunk: at most 4 MB of f32 weights, in multiples of 64.
int64_t chunk_rows(int64_t n, int64_t k) {
  constexpr int64_t kChunkFloats = 1 << 20;
  const int64_t rows = std::clamp<int64_t>(kChunkFloats / std::max<int64_t>(k, 1) / 64 * 64, 64, 512);
  return std::min(rows, n);
}

TENDON_CPU_CLONES void widen_rows(const Tensor& t, int64_t begin, int64_t end, float* out) {
  for (int64_t row = begin; row < end; ++row) {
    widen(row_pointer<const uint16_t>(t, row, 0), out + row * t.cols(), t.cols());
  }
}

// Columns first..first+count of out from the sums in acc.
TENDON_CPU_CLONES void finish_rows(const Linear& a, const float* acc, int64_t acc_stride, int64_t first, int64_t count,
                                   int64_t begin, int64_t end) {
  float bias_tile[kTile], tile[kTile];
  for (int64_t col = 0; col < count; col += kTile) {
    const int64_t width = std::min(kTile, count - col);
    const float* bias = a.bias.data == nullptr ? nullptr : load_tile(a.bias, 0, first + col, width, bias_tile);
    for (int64_t row = begin; row < end; ++row) {
      const float* sums = acc + row * acc_stride + col;
      if (bias != nullptr) {
        for (int64_t i = 0; i < width; ++i) tile[i] = sums[i] + bias[i];
      } else {
        std::memcpy(tile, sums, static_cast<size_t>(width) * sizeof(float));
      }
      activate(a.activation, tile, width);
      store_tile(a.out, row, first + col, width, tile);
    }
  }
}

enum class Path {
  kF32,   // f32 products; bf16 weights are widened chunk by chunk
  kBf16,  // bf16 products on matrix tiles
};

class LinearKernel final : public CpuKernel {
 public:
  static Path choose(const Linear& a, const CpuContext& cpu) {
    return cpu.matmul.native_bf16() && a.w.dtype == DType::kBf16 && a.x.dtype == DType::kBf16 ? Path::kBf16
                                                                                              : Path::kF32;
  }

  LinearKernel(const Op& op, CpuContext& cpu, void* workspace, size_t* workspace_bytes)
      : a_(std::get<Linear>(op.args)), label_(op_label(op)), path_(choose(a_, cpu)) {
    m_ = a_.x.rows(), n_ = a_.w.rows(), k_ = a_.w.cols();
    if (m_ == 0 || n_ == 0) return;
    chunk_ = chunk_rows(n_, k_);
    const int64_t tail = n_ % chunk_;
    Scratch scratch(workspace);
    if (path_ == Path::kF32 && a_.x.dtype == DType::kBf16) {
      x_wide_ = scratch.take<float>(static_cast<size_t>(m_ * k_));
      copies_x_ = true;
    }
    if (path_ == Path::kF32 && a_.w.dtype == DType::kBf16) {
      w_wide_ = scratch.take<float>(static_cast<size_t>(chunk_ * k_));
      copies_w_ = true;
    }
    in_place_ = a_.out.dtype == DType::kF32;
    if (!in_place_) acc_ = scratch.take<float>(static_cast<size_t>(m_ * chunk_));
    MatmulDesc desc{.m = m_,
                    .n = chunk_,
                    .k = k_,
                    .a_stride = copies_x_ ? k_ : a_.x.row_stride,
                    .b_stride = k_,
                    .c_stride = in_place_ ? a_.out.row_stride : chunk_,
                    .b_is_nk = true,
                    .dtype = path_ == Path::kBf16 ? DType::kBf16 : DType::kF32,
                    .threads = cpu.threads};
    MatmulDesc tail_desc = desc;
    tail_desc.n = tail;
    size_t library_bytes = cpu.matmul.primitive(desc).scratch_bytes();
    if (tail != 0) library_bytes = std::max(library_bytes, cpu.matmul.primitive(tail_desc).scratch_bytes());
    char* library_scratch = scratch.take<char>(library_bytes);
    if (workspace_bytes != nullptr) {
      *workspace_bytes = scratch.used();
      return;
    }
    product_ = Matmul(cpu.matmul, desc, library_scratch);
    if (tail != 0) tail_product_ = Matmul(cpu.matmul, tail_desc, library_scratch);
  }

  Status run() noexcept override {
    if (m_ == 0 || n_ == 0) return Status::ok();
    const void* x = a_.x.data;
    if (copies_x_) {
      parallel_for(m_, row_grain(k_), [&](int64_t begin, int64_t end) { widen_rows(a_.x, begin, end, x_wide_); });
      x = x_wide_;
    }
    const bool has_epilogue = !in_place_ || a_.bias.data != nullptr || a_.activation != Activation::kNone;
    for (int64_t first = 0; first < n_; first += chunk_) {
      const int64_t count = std::min(chunk_, n_ - first);
      const void* w = a_.w.as<char>() + first * k_ * static_cast<int64_t>(dtype_bytes(a_.w.dtype));
      if (copies_w_) {
        Tensor rows = a_.w;
        rows.row_stride = k_;
        rows.data = const_cast<void*>(w);
        parallel_for(count, row_grain(k_), [&](int64_t begin, int64_t end) { widen_rows(rows, begin, end, w_wide_); });
        w = w_wide_;
      }
      float* sums = in_place_ ? a_.out.as<float>() + first : acc_;
      const int64_t sums_stride = in_place_ ? a_.out.row_stride : chunk_;
      if (!(count == chunk_ ? product_ : tail_product_).run(x, w, sums)) {
        return Status::error(StatusCode::kInternal, "%s: oneDNN failed to run the product", label_.c_str());
      }
      if (!has_epilogue) continue;
      parallel_for(m_, std::max<int64_t>(1, row_grain(count) / 2),
                   [&](int64_t begin, int64_t end) { finish_rows(a_, sums, sums_stride, first, count, begin, end); });
    }
    return Status::ok();
  }

 private:
  Linear a_;
  std::string label_;
  Path path_;
  int64_t m_ = 0, n_ = 0, k_ = 0, chunk_ = 0;
  bool copies_x_ = false, copies_w_ = false, in_place_ = false;
  float* x_wide_ = nullptr;
  float* w_wide_ = nullptr;
  float* acc_ = nullptr;
  Matmul product_, tail_product_;
};

bool can_linear(const Op& op) {
  const auto& a = std::get<Linear>(op.args);
  return all_float(a.x, a.w, a.bias, a.out) && a.w.contiguous() && a.w.cols() > 0;
}

std::string linear_kernel_name(const Op& op, CpuContext& cpu) {
  const auto& a = std::get<Linear>(op.args);
  if (LinearKernel::choose(a, cpu) == Path::kBf16) return "cpu.linear (oneDNN bf16)";
  return a.w.dtype == DType::kBf16 ? "cpu.linear (oneDNN f32, widened weights)" : "cpu.linear (oneDNN f32)";
}

size_t linear_workspace(const Op& op, CpuContext& cpu) {
  size_t bytes = 0;
  const LinearKernel measured(op, cpu, nullptr, &bytes);
  return bytes;
}

std::unique_ptr<CpuKernel> prepare_linear(const Op& op, CpuContext& cpu, void* workspace) {
  return std::make_unique<LinearKernel>(op, cpu, workspace, nullptr);
}

}  // namespace

CpuOp cpu_linear() {
  return {.name = Linear::kName,
          .can = can_linear,
          .kernel = linear_kernel_name,
          .workspace = linear_workspace,
          .prepare = prepare_linear};
}

}  // namespace tendon
