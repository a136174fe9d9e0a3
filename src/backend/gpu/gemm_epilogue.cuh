// What follows a product, for eight columns of one row at a time. The formula stands at Product in gemm.h.
#pragma once

#include "backend/gpu/device/prelude.cuh"
#include "ops/basic_ops.h"

namespace tendon::gpu {

struct GemmEpilogue {
  const float *bias, *table, *gate;
  const void* residual;
  void* out;
  int64_t table_stride, residual_stride, out_stride;
  int rows, cols, table_rows;
  Activation activation;
  bool bf16_out;
  bool vectors;  // out and residual take 16-byte accesses at multiples of eight columns
};

// Where sums go: into the epilogue, or as a part of K into the workspace.
struct GemmSink {
  GemmEpilogue epilogue;
  float* parts;   // (splits, rows, pitch), null when K is not split
  int64_t pitch;  // columns of a part rounded up to eight; gate and up: twice that
  bool gate_up;   // sums of gate and up alternate in groups of eight columns
};

// Eight neighbouring values of a row.
template <class T>
struct Eight {
  static constexpr int kVec = Vec<T>::kSize;
  Vec<T> part[8 / kVec];
  TENDON_DEVICE T& operator[](int i) { return part[i / kVec].v[i % kVec]; }
  TENDON_DEVICE const T& operator[](int i) const { return part[i / kVec].v[i % kVec]; }
};
template <class T>
TENDON_DEVICE Eight<T> load_eight(const T* from) {  // 16-byte aligned
  Eight<T> values;
#pragma unroll
  for (int i = 0; i < 8 / Eight<T>::kVec; ++i) values.part[i] = load_vec(from + i * Eight<T>::kVec);
  return values;
}
template <class T>
TENDON_DEVICE void store_eight(T* to, const Eight<T>& values) {
#pragma unroll
  for (int i = 0; i < 8 / Eight<T>::kVec; ++i) store_vec(to + i * Eight<T>::kVec, values.part[i]);
}

// What belongs to eight columns; zeros where there is none.
struct ColumnTerms {
  float bias[8], gate[8];
};
TENDON_DEVICE ColumnTerms load_terms(const GemmEpilogue& e, int col) {
  ColumnTerms terms;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    terms.bias[i] = e.bias != nullptr && col + i < e.cols ? e.bias[col + i] : 0.0F;
    terms.gate[i] = e.gate != nullptr && col + i < e.cols ? e.gate[col + i] : 0.0F;
  }
  return terms;
}

template <class T>
TENDON_DEVICE Eight<T> load_residual(const GemmEpilogue& e, int row, int col) {
  Eight<T> values = {};
  if (e.residual == nullptr || row >= e.rows || col >= e.cols) return values;
  const T* const from = static_cast<const T*>(e.residual) + row * e.residual_stride + col;
  if (e.vectors && col + 8 <= e.cols) return load_eight(from);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (col + i < e.cols) values[i] = from[i];
  }
  return values;
}

template <class T>
TENDON_DEVICE void store_columns(const GemmEpilogue& e, int row, int col, const Eight<T>& values) {
  if (row >= e.rows || col >= e.cols) return;
  T* const out = static_cast<T*>(e.out) + row * e.out_stride + col;
  if (e.vectors && col + 8 <= e.cols) {
    store_eight(out, values);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (col + i < e.cols) out[i] = values[i];
  }
}

// From the sums of columns col .. col + 7 to what is stored there.
template <class T>
TENDON_DEVICE Eight<T> finished(const GemmEpilogue& e, const ColumnTerms& terms, int row, int col, Eight<float> y,
                                const Eight<T>& residual) {
#pragma unroll
  for (int i = 0; i < 8; ++i) y[i] += terms.bias[i];
  if (e.activation == Activation::kGeluTanh) {
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = gelu_tanh(y[i]);
  } else if (e.activation == Activation::kSilu) {
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = silu(y[i]);
  }
  if (e.table != nullptr) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      y[i] += col + i < e.cols ? e.table[row % e.table_rows * e.table_stride + col + i] : 0.0F;
  }
  if (e.residual != nullptr) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      y[i] = rounded<T>(y[i]);
      if (e.gate != nullptr) y[i] = rounded<T>(y[i] * rounded<T>(terms.gate[i]));
      y[i] += widen(residual[i]);
    }
  }
  Eight<T> values;
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = narrow<T>(y[i]);
  return values;
}

// The same for gelu(gate) · up.
template <class T>
TENDON_DEVICE Eight<T> finished_gate_up(const Eight<float>& gate, const Eight<float>& up) {
  Eight<T> values;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = narrow<T>(rounded<T>(gelu_tanh(rounded<T>(gate[i]))) * rounded<T>(up[i]));
  }
  return values;
}

// Drains kRows × kCols sums from shared memory with a group of kLanes lanes, of which this is number `lane`. Lanes keep
// their columns, and kBatch rows are on their way at once.
template <class T, bool kGateUp, int kRows, int kCols, int kPitch, int kLanes>
TENDON_DEVICE void drain_columns(const GemmEpilogue& e, const float* sums, int lane, int first_row, int first_col) {
  constexpr int kGroup = kGateUp ? 16 : 8;
  constexpr int kGroups = kCols / kGroup;
  constexpr int kStep = kLanes / kGroups;
  constexpr int kPasses = kRows < kStep ? 1 : kRows / kStep;
  constexpr int kBatch = kPasses % 4 == 0 ? 4 : kPasses % 2 == 0 ? 2 : 1;
  static_assert(kLanes % kGroups == 0 && (kRows < kStep || kRows % kStep == 0));
  const int at_col = lane % kGroups;
  const int at_row = lane / kGroups;
  if (at_row >= kRows) return;
  const int col = first_col + at_col * 8;
  const float* const from = sums + at_row * kPitch + at_col * kGroup;
  const ColumnTerms terms = load_terms(e, col);
#pragma unroll 1
  for (int pass = 0; pass < kPasses; pass += kBatch) {
    const int row = first_row + at_row + pass * kStep;
    Eight<T> residual[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) residual[i] = load_residual<T>(e, row + i * kStep, col);
    Eight<T> values[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float* const at = from + (pass + i) * kStep * kPitch;
      if constexpr (kGateUp) {
        values[i] = finished_gate_up<T>(load_eight(at), load_eight(at + 8));
      } else {
        values[i] = finished<T>(e, terms, row + i * kStep, col, load_eight(at), residual[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) store_columns(e, row + i * kStep, col, values[i]);
  }
}

// Sums as a part of K. Columns count sums, which alternate between gate and up where there are both.
template <int kRows, int kCols, int kPitch, int kLanes>
TENDON_DEVICE void drain_part(const GemmSink& sink, const float* sums, int lane, int split, int first_row,
                              int first_col) {
  constexpr int kQuads = kCols / 4;
#pragma unroll 4
  for (int i = lane; i < kRows * kQuads; i += kLanes) {
    const int row = first_row + i / kQuads;
    const int col = first_col + i % kQuads * 4;
    if (row < sink.epilogue.rows && col < sink.pitch) {
      store_vec(sink.parts + (static_cast<int64_t>(split) * sink.epilogue.rows + row) * sink.pitch + col,
                load_vec(sums + i / kQuads * kPitch + i % kQuads * 4));
    }
  }
}

// kRows × kCols sums of a group of lanes, in shared memory; first_col counts sums.
template <int kRows, int kCols, int kPitch, int kLanes>
TENDON_DEVICE void drain(const GemmSink& sink, const float* sums, int lane, int split, int first_row, int first_col) {
  const GemmEpilogue& e = sink.epilogue;
  if (sink.parts != nullptr) {
    drain_part<kRows, kCols, kPitch, kLanes>(sink, sums, lane, split, first_row, first_col);
  } else if (sink.gate_up) {
    if (e.bf16_out) {
      drain_columns<Bf16, true, kRows, kCols, kPitch, kLanes>(e, sums, lane, first_row, first_col / 2);
    } else {
      drain_columns<float, true, kRows, kCols, kPitch, kLanes>(e, sums, lane, first_row, first_col / 2);
    }
  } else if (e.bf16_out) {
    drain_columns<Bf16, false, kRows, kCols, kPitch, kLanes>(e, sums, lane, first_row, first_col);
  } else {
    drain_columns<float, false, kRows, kCols, kPitch, kLanes>(e, sums, lane, first_row, first_col);
  }
}

}  // namespace tendon::gpu
