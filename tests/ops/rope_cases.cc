#include "rope_cases.h"

#include "maker.h"

namespace tendon::op_check {
namespace {

struct RopeShape {
  const char* name;
  int64_t rows, width;
  int64_t q_heads, head;  // of q (0: only keys and values are made); one head of keys, one of values
  bool real = false;
};

// The weights lie one behind the other, as those of models do on a card. Every seventh row is padding.
Case rope_case(const RopeShape& s, DType dtype, DType weights) {
  Maker m;
  const int64_t q_cols = s.q_heads * s.head;
  const Tensor w = m.weight(weights, q_cols + 2 * s.head, s.width);
  const Fill rows = [](Random&, int64_t i) { return i % 7 == 5 ? -1.0 : static_cast<double>(i + 3); };
  NormQkvRope a{.x = m.data(dtype, {s.rows, s.width}),
                .norm = {.gain = m.vector(s.width), .scale = {}, .shift = {}},
                .wq = {},
                .wk = w.row_range(q_cols, s.head),
                .wv = w.row_range(q_cols + s.head, s.head),
                .positions = m.plain(kI32, {s.rows}, integers(0, 50)),
                .cache_rows = m.plain(kI32, {s.rows}, rows),
                .table = m.plain(kF32, {50, s.head}, normal(0.6)),
                .q = {},
                .k_cache = m.data(dtype, {1, s.rows + 9, s.head}),
                .v_cache = m.data(dtype, {1, s.rows + 9, s.head})};
  if (s.q_heads > 0) {
    a.wq = w.row_range(0, q_cols);
    a.q = m.out(dtype, {s.rows, q_cols});
  }
  Case made = m.make(fmt::format("tile_{}.{}", s.name, dtype_name(weights)), a);
  made.slow = made.bench = made.streamed = s.real;
  return made;
}

}  // namespace

std::vector<Case> rope_cases() {
  std::vector<Case> list;
  for (const DType dtype : {kBf16, kF32}) {
    for (const RopeShape& s : {RopeShape{"narrow", 97, 72, 2, 64}, RopeShape{"wide", 97, 136, 1, 256},
                               RopeShape{"kv_only", 300, 200, 0, 128}, RopeShape{"heads", 300, 200, 3, 64},
                               RopeShape{"deep", 300, 520, 2, 256}, RopeShape{"several", 300, 264, 2, 256}}) {
      list.push_back(rope_case(s, dtype, dtype));
    }
  }
  for (const RopeShape& s : {RopeShape{"narrow", 97, 80, 2, 64}, RopeShape{"wide", 97, 144, 1, 256},
                             RopeShape{"kv_only", 300, 208, 0, 128}, RopeShape{"several", 300, 528, 2, 256}}) {
    for (const DType codes : {DType::kI8, DType::kE4m3}) list.push_back(rope_case(s, kBf16, codes));
  }
  for (const DType weights : {kBf16, DType::kI8}) {
    list.push_back(rope_case({"prefix", 788, 2048, 8, 256, true}, kBf16, weights));
    list.push_back(rope_case({"prefix_kv_only", 788, 2048, 0, 256, true}, kBf16, weights));
  }
  return list;
}

}  // namespace tendon::op_check
