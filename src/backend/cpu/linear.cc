// linear: out = act(x · wᵀ + bias).  x (M, K), w (N, K), bias (N), out (M, N); each f32 or bf16, x and w
// also e4m3 or i8 codes with scales.
// Sums accumulate in f32; bias and activation follow in f32; one rounding at the store.
//
// Weights are mapped files of up to 6.5 GB, so they are never copied whole. A piece of work is 64 rows of w (and, when
// those are too few for the threads, a part of the rows of x), done by one thread: its bf16 weights are widened to f32
// (exact) into scratch memory that stays in the second-level cache, oneDNN's f32 product runs on them, and the sums,
// still in the cache, are finished and stored. f32 weights are read in place in the same pieces, so that equal weights
// stored either way give identical results. At most kFewRows rows of x go to few_rows.cc instead. Codes are widened
// like bf16 numbers; the sums meet the scales when they are finished.
//
// Measured on 2 cores of a Xeon of the 4th generation (AVX512-BF16, no AMX), GFLOP/s per 2 cores of CPU time, M = 788:
//   N 2048 K 2048: these pieces 281, widened 263-289, oneDNN alone 285; N 16384 K 2048: 280, 286, 261;
//   N 2048 K 16384: 282, 284, 261; pieces of 32 rows: 10 % slower, of 128 and 256: equal; oneDNN bf16 100-165.
#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "backend/cpu/few_rows.h"
#include "backend/cpu/op_table.h"
#include "backend/cpu/vector_math.h"

namespace tendon {
namespace {

constexpr int64_t kPieceRows = 64;        // of w
constexpr int64_t kLeastBlock = 128;      // rows of x that are worth widening a piece of w for
constexpr int64_t kThreadWork = 1 << 17;  // multiplications worth a thread

// What the 256 codes stand for.
struct CodeValues {
  std::array<float, 256> e4m3, i8;
};
constexpr CodeValues kCodeValues = [] {
  CodeValues values{};
  for (size_t bits = 0; bits < 256; ++bits) {
    values.e4m3[bits] = to_float(E4m3{static_cast<uint8_t>(bits)});
    values.i8[bits] = static_cast<float>(static_cast<int8_t>(bits));
  }
  return values;
}();

bool is_widened(const Tensor& t) { return t.dtype == DType::kBf16 || is_scaled(t.dtype); }

// Of rows with scales, the codes.
TENDON_CPU_CLONES void widen_rows(const Tensor& t, int64_t begin, int64_t end, float* out) {
  const int64_t cols = t.cols();
  for (int64_t row = begin; row < end; ++row) {
    float* const wide = out + (row - begin) * cols;
    if (t.dtype == DType::kBf16) {
      widen(row_pointer<const uint16_t>(t, row, 0), wide, cols);
    } else {
      const std::array<float, 256>& values = t.dtype == DType::kE4m3 ? kCodeValues.e4m3 : kCodeValues.i8;
      const auto* const codes = row_pointer<const uint8_t>(t, row, 0);
      for (int64_t i = 0; i < cols; ++i) wide[i] = values[codes[i]];
    }
  }
}

// out[row + r, first + n] = act(sums[r, n] + bias[first + n]) for r < rows, n < count ≤ kTile.
TENDON_CPU_CLONES void finish_rows(const Linear& a, const float* sums, int64_t sums_stride, int64_t row, int64_t rows,
                                   int64_t first, int64_t count) {
  float bias_tile[kTile], tile[kTile];
  const float* bias = a.bias.data == nullptr ? nullptr : load_tile(a.bias, 0, first, count, bias_tile);
  for (int64_t r = 0; r < rows; ++r) {
    const float* values = sums + r * sums_stride;
    if (a.w.scales != nullptr) {
      const float x_scale = a.x.scales[row + r];
      for (int64_t i = 0; i < count; ++i) tile[i] = values[i] * (x_scale * a.w.scales[first + i]);
      values = tile;
    }
    if (bias != nullptr) {
      for (int64_t i = 0; i < count; ++i) tile[i] = values[i] + bias[i];
      values = tile;
    }
    if (a.activation != Activation::kNone) {
      if (values != tile) std::memcpy(tile, values, static_cast<size_t>(count) * sizeof(float));
      activate(a.activation, tile, count);
      values = tile;
    }
    store_tile(a.out, row + r, first, count, values);
  }
}

enum class Path {
  kFewRows,  // own kernel
  kF32,      // oneDNN f32; bf16 weights are widened piece by piece
  kBf16,     // oneDNN bf16 on matrix tiles
};

Path choose_path(const Linear& a, const CpuContext& cpu) {
  if (is_scaled(a.w.dtype)) return Path::kF32;
  if (a.x.rows() <= kFewRows && few_rows_available()) return Path::kFewRows;
  const bool both_bf16 = a.w.dtype == DType::kBf16 && a.x.dtype == DType::kBf16;
  return both_bf16 && cpu.matmul.native_bf16() ? Path::kBf16 : Path::kF32;
}

class LinearKernel final : public CpuKernel {
 public:
  // With workspace_bytes only measures the workspace.
  LinearKernel(const Op& op, CpuContext& cpu, void* workspace, size_t* workspace_bytes)
      : a_(std::get<Linear>(op.args)), label_(op_label(op)), path_(choose_path(a_, cpu)) {
    m_ = a_.x.rows(), n_ = a_.w.rows(), k_ = a_.w.cols();
    if (m_ == 0 || n_ == 0) return;
    chunks_ = (n_ + kPieceRows - 1) / kPieceRows;
    block_ = path_ == Path::kFewRows ? m_ : rows_of_block(cpu.threads);
    blocks_ = (m_ + block_ - 1) / block_;
    threads_ = static_cast<int>(std::clamp<int64_t>(m_ * n_ * k_ / kThreadWork, 1, cpu.threads));

    Scratch scratch(workspace);
    if (path_ == Path::kFewRows) {
      packed_x_ = scratch.take<float>(static_cast<size_t>(m_ * few_rows_stride(k_)));
    } else if (path_ == Path::kF32 && is_widened(a_.x)) {
      packed_x_ = scratch.take<float>(static_cast<size_t>(m_ * k_));
      widens_x_ = true;
    }
    widens_w_ = path_ == Path::kF32 && is_widened(a_.w);
    const size_t library_bytes = path_ == Path::kFewRows ? 0 : library_scratch_bytes(cpu);
    for (int thread = 0; thread < threads_; ++thread) {
      Lane lane;
      lane.sums = scratch.take<float>(static_cast<size_t>(block_ * kPieceRows));
      if (widens_w_) lane.w = scratch.take<float>(static_cast<size_t>(kPieceRows * k_));
      char* library_scratch = scratch.take<char>(library_bytes);
      if (workspace_bytes != nullptr) continue;
      if (path_ != Path::kFewRows) {
        for (const bool tail_rows : {false, true}) {
          for (const bool tail_chunk : {false, true}) {
            const MatmulDesc desc = product_desc(tail_rows, tail_chunk);
            if (desc.m > 0 && desc.n > 0) {
              lane.products[tail_rows][tail_chunk] = Matmul(cpu.matmul, desc, library_scratch);
            }
          }
        }
      }
      lanes_.push_back(std::move(lane));
    }
    if (workspace_bytes != nullptr) *workspace_bytes = scratch.used();
  }

  Status run() noexcept override {
    if (m_ == 0 || n_ == 0) return Status::ok();
    if (path_ == Path::kFewRows) {
      parallel_for(m_, row_grain(k_), [&](int64_t begin, int64_t end) { few_rows_pack(a_.x, begin, end, packed_x_); });
    } else if (widens_x_) {
      parallel_for(m_, row_grain(k_),
                   [&](int64_t begin, int64_t end) { widen_rows(a_.x, begin, end, packed_x_ + begin * k_); });
    }
    std::atomic<bool> failed = false;
    parallel_pieces(chunks_ * blocks_, threads_, [&](int64_t piece, int thread) {
      if (!run_piece(piece, lanes_[static_cast<size_t>(thread)])) failed = true;
    });
    if (failed) return Status::error(StatusCode::kInternal, "%s: oneDNN failed to run the product", label_.c_str());
    return Status::ok();
  }

 private:
  struct Lane {  // what one thread works with
    float* w = nullptr;
    float* sums = nullptr;
    Matmul products[2][2];  // [fewer rows of x: the last block][fewer rows of w: the last chunk]
  };

  int64_t rows_of_block(int threads) const {
    const int64_t wanted = (3 * threads + chunks_ - 1) / chunks_;  // three pieces a thread even out
    const int64_t blocks = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, m_ / kLeastBlock));
    return (m_ + blocks - 1) / blocks;
  }

  MatmulDesc product_desc(bool tail_rows, bool tail_chunk) const {
    return {.m = tail_rows ? m_ % block_ : block_,
            .n = tail_chunk || n_ < kPieceRows ? n_ % kPieceRows : kPieceRows,
            .k = k_,
            .a_stride = widens_x_ ? k_ : a_.x.row_stride,
            .b_stride = k_,
            .c_stride = kPieceRows,
            .b_is_nk = true,
            .dtype = path_ == Path::kBf16 ? DType::kBf16 : DType::kF32};
  }

  size_t library_scratch_bytes(CpuContext& cpu) const {
    size_t bytes = 0;
    for (const bool tail_rows : {false, true}) {
      for (const bool tail_chunk : {false, true}) {
        const MatmulDesc desc = product_desc(tail_rows, tail_chunk);
        if (desc.m > 0 && desc.n > 0) bytes = std::max(bytes, cpu.matmul.primitive(desc).scratch_bytes());
      }
    }
    return bytes;
  }

  bool run_piece(int64_t piece, const Lane& lane) const {
    const int64_t first = piece / blocks_ * kPieceRows;
    const int64_t count = std::min(kPieceRows, n_ - first);
    const int64_t row = piece % blocks_ * block_;
    const int64_t rows = std::min(block_, m_ - row);
    if (path_ == Path::kFewRows) {
      few_rows_product(packed_x_, rows, a_.w, first, count, lane.sums, kPieceRows);
    } else {
      const void* w = a_.w.as<char>() + first * k_ * static_cast<int64_t>(dtype_bytes(a_.w.dtype));
      if (widens_w_) {
        widen_rows(a_.w, first, first + count, lane.w);
        w = lane.w;
      }
      const void* x = widens_x_
                          ? static_cast<const void*>(packed_x_ + row * k_)
                          : a_.x.as<char>() + row * a_.x.row_stride * static_cast<int64_t>(dtype_bytes(a_.x.dtype));
      if (!lane.products[rows != block_][count != kPieceRows].run(x, w, lane.sums)) return false;
    }
    finish_rows(a_, lane.sums, kPieceRows, row, rows, first, count);
    return true;
  }

  Linear a_;
  std::string label_;
  Path path_;
  int64_t m_ = 0, n_ = 0, k_ = 0;
  int64_t chunks_ = 0, block_ = 0, blocks_ = 0;
  int threads_ = 1;
  bool widens_x_ = false, widens_w_ = false;
  float* packed_x_ = nullptr;
  std::vector<Lane> lanes_;
};

bool can_linear(const Op& op) {
  const auto& a = std::get<Linear>(op.args);
  const bool types = is_scaled(a.w.dtype) ? a.x.dtype == a.w.dtype : all_float(a.x, a.w);
  return types && all_float(a.bias, a.out) && a.w.contiguous() && a.w.cols() > 0;
}

std::string linear_kernel_name(const Op& op, CpuContext& cpu) {
  const auto& a = std::get<Linear>(op.args);
  switch (choose_path(a, cpu)) {
    case Path::kFewRows:
      return "cpu.linear (few rows, AVX-512)";
    case Path::kBf16:
      return "cpu.linear (oneDNN bf16)";
    case Path::kF32:
      break;
  }
  return is_widened(a.w) ? "cpu.linear (oneDNN f32, widened weights)" : "cpu.linear (oneDNN f32)";
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
