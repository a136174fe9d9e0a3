// How one operation of the CPU backend is described, prepared and run. The table of all of them: op_table.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "backend/cpu/matmul.h"
#include "base/parallel.h"
#include "base/status.h"
#include "ops/ops.h"

namespace tendon {

// What the kernels of one backend share.
struct CpuContext {
  int threads = 1;
  MatmulLibrary matmul;
};

// A bound operation. run() neither allocates nor throws.
class CpuKernel {
 public:
  virtual ~CpuKernel() = default;
  virtual Status run() noexcept = 0;
};

// One row of the op table.
struct CpuOp {
  std::string_view name;                                 // the operation's word
  bool (*can)(const Op& op);                             // are these types and shapes handled?
  std::string (*kernel)(const Op& op, CpuContext& cpu);  // text for `tendon info`
  size_t (*workspace)(const Op& op, CpuContext& cpu);    // scratch bytes while it runs
  std::unique_ptr<CpuKernel> (*prepare)(const Op& op, CpuContext& cpu, void* workspace);
};

inline bool is_float(const Tensor& tensor) { return tensor.dtype == DType::kF32 || tensor.dtype == DType::kBf16; }
template <class... Tensors>
bool all_float(const Tensors&... tensors) {
  return (is_float(tensors) && ...);
}
inline bool is_i32(const Tensor& tensor) { return tensor.dtype == DType::kI32 && tensor.contiguous(); }

// Rows worth a thread when each has `cols` elements.
inline int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(cols, 1)); }

constexpr size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// body(piece, thread) for every piece, handed out one by one to `threads` threads: a thread that is held up elsewhere
// delays one piece, not the whole loop.
template <class Body>
void parallel_pieces(int64_t pieces, int threads, const Body& body) {
  const int used = static_cast<int>(std::min<int64_t>(pieces, threads));
  if (used <= 1) {
    for (int64_t piece = 0; piece < pieces; ++piece) body(piece, 0);
    return;
  }
#ifdef __SANITIZE_THREAD__
  std::atomic<int64_t> next = 0;
  run_threads(used, [&](int thread) {
    for (int64_t piece = next++; piece < pieces; piece = next++) body(piece, thread);
  });
#else
#pragma omp parallel for schedule(dynamic, 1) num_threads(used)
  for (int64_t piece = 0; piece < pieces; ++piece) body(piece, omp_get_thread_num());
#endif
}

// Hands out 256-byte aligned pieces of the workspace; with a null base it only measures.
class Scratch {
 public:
  explicit Scratch(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(size_t count) {
    char* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += round_up(count * sizeof(T), 256);
    return reinterpret_cast<T*>(piece);
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

// For operations that are a single loop over the operands: can(args) and run(args, label) make the whole row.
template <class Args, bool (*kCan)(const Args&), Status (*kRun)(const Args&, const char* label)>
CpuOp plain_op() {
  class Kernel final : public CpuKernel {
   public:
    explicit Kernel(const Op& op) : args_(std::get<Args>(op.args)), label_(op_label(op)) {}
    Status run() noexcept override { return kRun(args_, label_.c_str()); }

   private:
    Args args_;
    std::string label_;
  };
  return {.name = Args::kName,
          .can = [](const Op& op) { return kCan(std::get<Args>(op.args)); },
          .kernel = [](const Op&, CpuContext&) { return std::string("cpu.") + Args::kName; },
          .workspace = [](const Op&, CpuContext&) { return size_t{0}; },
          .prepare = [](const Op& op, CpuContext&, void*) -> std::unique_ptr<CpuKernel> {
            return std::make_unique<Kernel>(op);
          }};
}

// kBadInput naming the operation and the offending entry when an entry of `index` is outside low..high-1.
Status check_index(const Tensor& index, const char* what, int64_t low, int64_t high, const char* label);

}  // namespace tendon
