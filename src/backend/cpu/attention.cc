// attention: out = softmax(scale · q·kᵀ) · v per head over the keys that a row sees (ops/basic_ops.h).
// q, out (B, T, heads·D), k, v (B, capacity, kv_heads·D), each f32 or bf16; logits, softmax and sums in f32.
//
// K and V are widened once to f32, with zeros where no row of the sample may look, so that whatever lies in unused
// cache rows (NaN included) cannot matter. Then every (sample, KV head, block of query rows) is one piece of work for
// one thread: the query heads that share the KV head are stacked into one matrix, logits = Q·Kᵀ, softmax in place, out
// = P·V, the two products by oneDNN.
#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "backend/cpu/op_table.h"
#include "backend/cpu/vector_math.h"

namespace tendon {
namespace {

using Float16 = float __attribute__((vector_size(64), aligned(4), may_alias));

// In place: x[j] = exp(scale · (x[j] - max)) / Σ for j < count (masked keys 0), 0 for count ≤ j < capacity.
TENDON_CPU_CLONES void softmax_row(float* x, int64_t count, int64_t capacity, float scale, const uint8_t* mask) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  if (mask != nullptr) {
    for (int64_t j = 0; j < count; ++j) x[j] = mask[j] != 0 ? x[j] : kNone;
  }
  int64_t j = 0;
  float top = kNone;
  if (count >= 16) {
    Float16 tops = *reinterpret_cast<const Float16*>(x);
    for (j = 16; j + 16 <= count; j += 16) {
      const Float16 value = *reinterpret_cast<const Float16*>(x + j);
      tops = value > tops ? value : tops;
    }
    for (int lane = 0; lane < 16; ++lane) top = std::max(top, tops[lane]);
  }
  for (; j < count; ++j) top = std::max(top, x[j]);
  if (top == kNone) {  // no keys
    std::fill(x, x + capacity, 0.0F);
    return;
  }
  for (j = 0; j < count; ++j) x[j] = exp_f32(scale * (x[j] - top));
  Float16 sums = {};
  for (j = 0; j + 16 <= count; j += 16) sums += *reinterpret_cast<const Float16*>(x + j);
  float total = 0;
  for (; j < count; ++j) total += x[j];
  for (int lane = 0; lane < 16; ++lane) total += sums[lane];
  const float inverse = 1.0F / total;
  for (j = 0; j < count; ++j) x[j] *= inverse;
  std::fill(x + count, x + capacity, 0.0F);
}

// `count` numbers of a row to contiguous floats, or back.
TENDON_CPU_CLONES void read_row(const Tensor& t, int64_t row, int64_t col, int64_t count, float* out) {
  const float* values = load_tile(t, row, col, count, out);
  if (values != out) std::memcpy(out, values, static_cast<size_t>(count) * sizeof(float));
}
TENDON_CPU_CLONES void write_row(const Tensor& t, int64_t row, int64_t col, int64_t count, const float* values) {
  store_tile(t, row, col, count, values);
}

class AttentionKernel final : public CpuKernel {
 public:
  AttentionKernel(const Op& op, CpuContext& cpu, void* workspace, size_t* workspace_bytes)
      : a_(std::get<Attention>(op.args)), label_(op_label(op)) {
    samples_ = a_.q.shape[0], queries_ = a_.q.shape[1], capacity_ = a_.k.shape[1];
    group_ = a_.heads / a_.kv_heads;
    dim_ = a_.q.cols() / a_.heads;
    if (a_.q.rows() == 0 || capacity_ == 0) return;

    // About 256 stacked rows a block (their logits fit the second-level cache), at least one block a thread.
    const int64_t pairs = samples_ * a_.kv_heads;
    int64_t blocks = std::max((queries_ * group_ + 255) / 256, (cpu.threads + pairs - 1) / pairs);
    blocks = std::clamp<int64_t>(blocks, 1, queries_);
    block_ = (queries_ + blocks - 1) / blocks;
    blocks_ = (queries_ + block_ - 1) / block_;
    const int64_t tail = queries_ % block_;
    logits_stride_ = static_cast<int64_t>(round_up(static_cast<size_t>(capacity_), 16));

    const MatmulDesc logits{.m = block_ * group_,
                            .n = capacity_,
                            .k = dim_,
                            .a_stride = dim_,
                            .b_stride = dim_,
                            .c_stride = logits_stride_,
                            .b_is_nk = true};
    const MatmulDesc values{.m = block_ * group_,
                            .n = dim_,
                            .k = capacity_,
                            .a_stride = logits_stride_,
                            .b_stride = dim_,
                            .c_stride = dim_,
                            .b_is_nk = false};
    MatmulDesc logits_tail = logits;
    MatmulDesc values_tail = values;
    logits_tail.m = values_tail.m = tail * group_;
    size_t library_bytes = 0;
    const auto measure = [&](const MatmulDesc& desc) {
      library_bytes = std::max(library_bytes, cpu.matmul.primitive(desc).scratch_bytes());
    };
    measure(logits), measure(values);
    if (tail != 0) measure(logits_tail), measure(values_tail);

    Scratch scratch(workspace);
    k_wide_ = scratch.take<float>(static_cast<size_t>(pairs * capacity_ * dim_));
    v_wide_ = scratch.take<float>(static_cast<size_t>(pairs * capacity_ * dim_));
    for (int thread = 0; thread < cpu.threads; ++thread) {
      Lane lane;
      lane.q = scratch.take<float>(static_cast<size_t>(block_ * group_ * dim_));
      lane.logits = scratch.take<float>(static_cast<size_t>(block_ * group_ * logits_stride_));
      char* library_scratch = scratch.take<char>(library_bytes);
      if (workspace_bytes == nullptr) {
        lane.logits_product = Matmul(cpu.matmul, logits, library_scratch);
        lane.values_product = Matmul(cpu.matmul, values, library_scratch);
        if (tail != 0) {
          lane.logits_tail = Matmul(cpu.matmul, logits_tail, library_scratch);
          lane.values_tail = Matmul(cpu.matmul, values_tail, library_scratch);
        }
        lanes_.push_back(std::move(lane));
      }
    }
    if (workspace_bytes != nullptr) *workspace_bytes = scratch.used();
  }

  Status run() noexcept override {
    if (a_.q.rows() == 0) return Status::ok();
    if (capacity_ == 0) {
      for (int64_t row = 0; row < a_.out.rows(); ++row) clear_row(row);
      return Status::ok();
    }
    if (a_.key_len.data != nullptr) {
      const int64_t extra = queries_ > a_.leading_block ? a_.extra_keys : a_.leading_block;
      const Status status = check_index(a_.key_len, "key_len", 0, capacity_ - extra + 1, label_.c_str());
      if (!status.is_ok()) return status;
    }
    parallel_for(samples_ * capacity_, row_grain(a_.k.cols()), [&](int64_t begin, int64_t end) { widen(begin, end); });

    const int64_t pieces = samples_ * a_.kv_heads * blocks_;
    std::atomic<bool> failed = false;
    parallel_pieces(pieces, static_cast<int>(lanes_.size()), [&](int64_t piece, int thread) {
      if (!run_piece(piece, lanes_[static_cast<size_t>(thread)])) failed = true;
    });
    if (failed) return Status::error(StatusCode::kInternal, "%s: oneDNN failed to run a product", label_.c_str());
    return Status::ok();
  }

 private:
  struct Lane {  // what one thread works with
    float* q = nullptr;
    float* logits = nullptr;
    Matmul logits_product, values_product, logits_tail, values_tail;
  };

  int64_t extra_keys(int64_t query) const { return query < a_.leading_block ? a_.leading_block : a_.extra_keys; }
  int64_t visible_keys(int64_t sample, int64_t query) const {
    return a_.key_len.data == nullptr ? capacity_ : a_.key_len.as<int32_t>()[sample] + extra_keys(query);
  }
  const uint8_t* mask(int64_t sample) const {
    return a_.key_mask.data == nullptr ? nullptr : a_.key_mask.as<uint8_t>() + sample * a_.key_mask.row_stride;
  }

  void clear_row(int64_t row) {
    std::memset(a_.out.as<char>() + row * a_.out.row_stride * static_cast<int64_t>(dtype_bytes(a_.out.dtype)), 0,
                static_cast<size_t>(a_.out.cols()) * dtype_bytes(a_.out.dtype));
  }

  // Rows begin..end of K and V (all samples) to [sample][head][key][D] floats; unseen keys become zeros.
  void widen(int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t sample = row / capacity_;
      const int64_t key = row % capacity_;
      const uint8_t* key_mask = mask(sample);
      const bool seen = key < visible_keys(sample, queries_ - 1) && (key_mask == nullptr || key_mask[key] != 0);
      for (int64_t head = 0; head < a_.kv_heads; ++head) {
        const int64_t to = ((sample * a_.kv_heads + head) * capacity_ + key) * dim_;
        if (seen) {
          read_row(a_.k, row, head * dim_, dim_, k_wide_ + to);
          read_row(a_.v, row, head * dim_, dim_, v_wide_ + to);
        } else {
          std::fill_n(k_wide_ + to, dim_, 0.0F);
          std::fill_n(v_wide_ + to, dim_, 0.0F);
        }
      }
    }
  }

  bool run_piece(int64_t piece, const Lane& lane) {
    const int64_t block = piece % blocks_;
    const int64_t pair = piece / blocks_;
    const int64_t sample = pair / a_.kv_heads;
    const int64_t head = pair % a_.kv_heads;
    const int64_t first = block * block_;
    const int64_t count = std::min(block_, queries_ - first);
    const bool whole = count == block_;
    const int64_t width = group_ * dim_;
    for (int64_t t = 0; t < count; ++t) {
      read_row(a_.q, sample * queries_ + first + t, head * width, width, lane.q + t * width);
    }
    const float* keys = k_wide_ + pair * capacity_ * dim_;
    const float* values = v_wide_ + pair * capacity_ * dim_;
    if (!(whole ? lane.logits_product : lane.logits_tail).run(lane.q, keys, lane.logits)) return false;
    for (int64_t row = 0; row < count * group_; ++row) {
      softmax_row(lane.logits + row * logits_stride_, visible_keys(sample, first + row / group_), capacity_, a_.scale,
                  mask(sample));
    }
    float* out = lane.q;  // the queries are used up
    if (!(whole ? lane.values_product : lane.values_tail).run(lane.logits, values, out)) return false;
    for (int64_t t = 0; t < count; ++t) {
      write_row(a_.out, sample * queries_ + first + t, head * width, width, out + t * width);
    }
    return true;
  }

  Attention a_;
  std::string label_;
  int64_t samples_ = 0, queries_ = 0, capacity_ = 0, group_ = 1, dim_ = 0;
  int64_t block_ = 0, blocks_ = 0, logits_stride_ = 0;
  float* k_wide_ = nullptr;
  float* v_wide_ = nullptr;
  std::vector<Lane> lanes_;
};

bool can_attention(const Op& op) {
  const auto& a = std::get<Attention>(op.args);
  return all_float(a.q, a.k, a.v, a.out) && (!a.key_len.defined() || is_i32(a.key_len)) &&
         (!a.key_mask.defined() || dtype_bytes(a.key_mask.dtype) == 1);
}

size_t attention_workspace(const Op& op, CpuContext& cpu) {
  size_t bytes = 0;
  const AttentionKernel measured(op, cpu, nullptr, &bytes);
  return bytes;
}

std::unique_ptr<CpuKernel> prepare_attention(const Op& op, CpuContext& cpu, void* workspace) {
  return std::make_unique<AttentionKernel>(op, cpu, workspace, nullptr);
}

}  // namespace

CpuOp cpu_attention() {
  return {.name = Attention::kName,
          .can = can_attention,
          .kernel = [](const Op&, CpuContext&) { return std::string("cpu.attention (oneDNN f32, widened keys)"); },
          .workspace = attention_workspace,
          .prepare = prepare_attention};
}

}  // namespace tendon
