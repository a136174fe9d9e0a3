#include "cases.h"

#include <cmath>
#include <tuple>

#include "denoise_cases.h"
#include "frame_cases.h"
#include "maker.h"
#include "rope_cases.h"
#include "scaled_cases.h"
#include "tile_cases.h"

namespace tendon::op_check {
namespace {

// What elementwise and row-wise operations meet: the towers' and the expert's activations, then the edges.
const MatrixShape kMatrices[] = {
    {"vision", 768, 1152, true},      {"prefix", 788, 2048, true},
    {"expert", 10, 1024, true},       {"expert_h50", 51, 1024, true},
    {"prefix_part", 24, 2048, false}, {"one_row", 1, 1024, false},
    {"one_col", 7, 1, false},         {"odd", 5, 37, false},
    {"odd_view", 9, 129, false, 5},   {"tile_edge", 3, 513, false},
    {"view", 33, 256, false, 8},      {"empty", 0, 64, false},
};

template <class Build>
void add_matrices(List& list, const Build& build) {
  for (const MatrixShape& shape : kMatrices) {
    for (const DType dtype : {kF32, kBf16}) {
      Maker maker(shape.margin);
      Case made = build(maker, dtype, shape);
      made.bench = shape.real;
      made.slow = shape.rows * shape.cols > 1000000;  // takes the oracle long, most of all in a sanitized build
      list.add(std::move(made));
    }
  }
}

std::string word(const MatrixShape& shape, DType dtype) { return fmt::format("{}.{}", shape.name, type_word(dtype)); }

void add_norms(List& list) {
  add_matrices(list, [](Maker& m, DType dtype, const MatrixShape& s) {
    RmsNorm a{.x = m.data(dtype, {s.rows, s.cols}), .gain = m.vector(s.cols), .out = m.out(dtype, {s.rows, s.cols})};
    return m.make(word(s, dtype), a);
  });
  add_matrices(list, [](Maker& m, DType dtype, const MatrixShape& s) {
    AdaRmsNorm a{.x = m.data(dtype, {s.rows, s.cols}),
                 .scale = m.vector(s.cols),
                 .shift = m.vector(s.cols),
                 .out = m.out(dtype, {s.rows, s.cols})};
    return m.make(word(s, dtype), a);
  });
  add_matrices(list, [](Maker& m, DType dtype, const MatrixShape& s) {
    const Fill off_centre = [](Random& random, int64_t) { return 1.5 + random.normal(); };
    LayerNorm a{.x = m.data(dtype, {s.rows, s.cols}, off_centre),
                .gain = m.vector(s.cols),
                .bias = m.vector(s.cols),
                .out = m.out(dtype, {s.rows, s.cols})};
    return m.make(word(s, dtype), a);
  });
  for (const MatrixShape& s :
       {MatrixShape{"many_rows", 2051, 136, false}, MatrixShape{"many_wide_rows", 2049, 1800, false}}) {
    Maker rms;
    list.add(rms.make(s.name, RmsNorm{.x = rms.data(kBf16, {s.rows, s.cols}),
                                      .gain = rms.vector(s.cols),
                                      .out = rms.out(kBf16, {s.rows, s.cols})}));
    Maker layer;
    list.add(layer.make(s.name, LayerNorm{.x = layer.data(kBf16, {s.rows, s.cols}),
                                          .gain = layer.vector(s.cols),
                                          .bias = layer.vector(s.cols),
                                          .out = layer.out(kBf16, {s.rows, s.cols})}));
  }
  {  // eps matters: ‖x‖ about 1e-3
    Maker m;
    list.add(m.make("tiny_norm",
                    RmsNorm{.x = m.data(kF32, {4, 64}, 1e-4), .gain = m.vector(64), .out = m.out(kF32, {4, 64})}));
  }
  {  // mixed types
    Maker m;
    list.add(m.make("mixed", RmsNorm{.x = m.data(kF32, {4, 96}), .gain = m.vector(96), .out = m.out(kBf16, {4, 96})}));
  }
}

void add_elementwise(List& list) {
  add_matrices(list, [](Maker& m, DType dtype, const MatrixShape& s) {
    const Shape shape = {s.rows, s.cols};
    return m.make(word(s, dtype),
                  ResidualAdd{.x = m.data(dtype, shape), .y = m.data(dtype, shape), .out = m.out(dtype, shape)});
  });
  add_matrices(list, [](Maker& m, DType dtype, const MatrixShape& s) {
    const Shape shape = {s.rows, s.cols};
    GatedResidual a{
        .x = m.data(dtype, shape), .y = m.data(dtype, shape), .gate = m.vector(s.cols), .out = m.out(dtype, shape)};
    return m.make(word(s, dtype), a);
  });
  add_matrices(list, [](Maker& m, DType dtype, const MatrixShape& s) {
    const Shape shape = {s.rows, s.cols};
    GeluMul a{.gate = m.data(dtype, shape, 2.5), .up = m.data(dtype, shape), .out = m.out(dtype, shape)};
    return m.make(word(s, dtype), a);
  });
  for (const DType from : {kF32, kBf16}) {
    add_matrices(list, [from](Maker& m, DType to, const MatrixShape& s) {
      const Shape shape = {s.rows, s.cols};
      return m.make(fmt::format("{}_to_{}", type_word(from), word(s, to)),
                    Cast{.x = m.data(from, shape), .out = m.out(to, shape)});
    });
  }
  for (const DType dtype : {kF32, kBf16}) {
    Maker m;
    Case gelu = m.make(fmt::format("prefix_mlp.{}", type_word(dtype)), GeluMul{.gate = m.data(dtype, {788, 16384}, 2.5),
                                                                               .up = m.data(dtype, {788, 16384}),
                                                                               .out = m.out(dtype, {788, 16384})});
    gelu.slow = true;
    list.add_bench(std::move(gelu));
    Maker e;
    list.add_bench(e.make(
        fmt::format("expert_mlp.{}", type_word(dtype)),
        GeluMul{
            .gate = e.data(dtype, {10, 4096}, 2.5), .up = e.data(dtype, {10, 4096}), .out = e.out(dtype, {10, 4096})}));
  }
  {  // the whole range of the activation, infinities excluded
    Maker m;
    const Fill sweep = [](Random&, int64_t i) { return -40.0 + 0.0390625 * static_cast<double>(i); };
    list.add(m.make(
        "sweep.f32",
        GeluMul{.gate = m.data(kF32, {2, 1024}, sweep), .up = m.data(kF32, {2, 1024}), .out = m.out(kF32, {2, 1024})}));
  }
  {
    Maker m;
    list.add(m.make("bf16_into_f32",
                    ResidualAdd{.x = m.data(kF32, {6, 70}), .y = m.data(kBf16, {6, 70}), .out = m.out(kF32, {6, 70})}));
  }
  for (const int64_t rows : {1, 10, 50}) {
    Maker m;
    const Shape shape = {rows, 32};
    list.add_bench(
        m.make(fmt::format("h{}", rows),
               EulerStep{.x = m.data(kF32, shape), .v = m.data(kF32, shape), .out = m.out(kF32, shape), .dt = -0.1F}));
  }
  {  // in place, as the sampler does it
    Maker m;
    const Tensor x = m.data(kF32, {12, 8});
    list.add(m.make("in_place", EulerStep{.x = x, .v = m.data(kF32, {12, 8}), .out = x, .dt = -0.2F}));
  }
  for (const int64_t rows : {1, 10, 50}) {
    for (const int64_t margin : {0, 3}) {
      Maker m(margin);
      const Shape shape = {rows, 32};
      list.add(m.make(fmt::format("h{}{}", rows, margin > 0 ? "_view" : ""),
                      Guidance{.x = m.data(kF32, shape),
                               .v = m.data(kF32, shape),
                               .target = m.data(kF32, shape),
                               .weight = m.data(kF32, shape,
                                                [](Random& random, int64_t i) {
                                                  return i % 4 == 0 ? 0.0
                                                                    : 0.25 * static_cast<double>(random.integer(0, 5));
                                                }),
                               .out = m.out(kF32, shape),
                               .time = 0.7F,
                               .scale = 2.762F}));
    }
  }
}

void add_rows(List& list) {
  for (const DType dtype : {kF32, kBf16}) {
    for (const int64_t images : {1, 3}) {
      Maker m;
      list.add_bench(m.make(fmt::format("positions_{}_images.{}", images, type_word(dtype)),
                            AddRows{.x = m.data(kF32, {images * 256, 1152}),
                                    .table = m.plain(kF32, {256, 1152}, normal()),
                                    .out = m.out(dtype, {images * 256, 1152})}));
    }
    Maker v(3);
    list.add(v.make(fmt::format("view.{}", type_word(dtype)), AddRows{.x = v.data(dtype, {12, 45}),
                                                                      .table = v.plain(kF32, {4, 45}, normal()),
                                                                      .out = v.out(dtype, {12, 45})}));

    // K and V rows into the cache of 2 samples; one row is skipped, one target is the last.
    Maker s;
    list.add(s.make(fmt::format("cache.{}", type_word(dtype)),
                    ScatterRows{.x = s.data(dtype, {5, 256}),
                                .rows = s.plain(kI32, {5}, listed({3, -1, 0, 15, 9})),
                                .out = s.data(dtype, {2, 8, 256}, normal())}));
    Maker sv(4);
    list.add(sv.make(fmt::format("view.{}", type_word(dtype)),
                     ScatterRows{.x = sv.data(dtype, {4, 33}),
                                 .rows = sv.plain(kI32, {4}, listed({6, 2, -7, 1})),
                                 .out = sv.data(dtype, {7, 33})}));
    Maker sp;
    list.add_bench(
        sp.make(fmt::format("prefix.{}", type_word(dtype)), ScatterRows{.x = sp.data(dtype, {788, 256}),
                                                                        .rows = sp.plain(kI32, {788}, counting(0)),
                                                                        .out = sp.data(dtype, {1, 848, 256})}));
    Maker none;
    list.add(
        none.make(fmt::format("empty.{}", type_word(dtype)), ScatterRows{.x = none.data(dtype, {0, 16}),
                                                                         .rows = none.plain(kI32, {0}, counting(0)),
                                                                         .out = none.data(dtype, {3, 16})}));

    Maker g;
    list.add(g.make(fmt::format("rows.{}", type_word(dtype)),
                    GatherRows{.x = g.data(dtype, {9, 77}),
                               .rows = g.plain(kI32, {6}, listed({8, 0, 0, 3, 7, 1})),
                               .out = g.out(dtype, {6, 77})}));
    Maker gv(6);
    list.add(gv.make(fmt::format("view.{}", type_word(dtype)), GatherRows{.x = gv.data(dtype, {9, 40}),
                                                                          .rows = gv.plain(kI32, {12}, integers(0, 9)),
                                                                          .out = gv.out(dtype, {12, 40})}));

    for (const int64_t margin : {0, 5}) {
      Maker c(margin);
      list.add(c.make(fmt::format("{}.{}", margin > 0 ? "view" : "rows", type_word(dtype)),
                      SelectRows{.x = c.data(dtype, {5, 77}),
                                 .y = c.data(dtype, {5, 77}),
                                 .chosen = c.plain(kI32, {5}, listed({1, 0, -3, 0, 1})),
                                 .out = c.out(dtype, {5, 77})}));
    }

    for (const bool real : {true, false}) {
      Maker p(real ? 0 : 5);
      const int64_t vocab = real ? 3000 : 20;
      const int64_t features = real ? 768 : 6;
      const int64_t width = real ? 2048 : 31;
      const int64_t rows = real ? 788 : 11;
      // Image features first, then tokens, the last word of the vocabulary included.
      const Fill sources = [=](Random& random, int64_t i) -> double {
        if (i == rows - 1) return static_cast<double>(-vocab);
        return i < features ? static_cast<double>(i) : static_cast<double>(-1 - random.integer(0, vocab));
      };
      Case prefix = p.make(fmt::format("{}.{}", real ? "prefix" : "odd_view", type_word(dtype)),
                           GatherPrefix{.features = p.data(dtype, {features, width}),
                                        .embedding = p.data(dtype, {vocab, width}),
                                        .sources = p.plain(kI32, {rows}, sources),
                                        .out = p.out(dtype, {rows, width}),
                                        .scale = 45.254834F});
      prefix.bench = real;
      list.add(std::move(prefix));
    }
    Maker mixed;  // f32 image features and a bf16 table
    list.add(mixed.make(fmt::format("mixed.{}", type_word(dtype)),
                        GatherPrefix{.features = mixed.data(kF32, {4, 24}),
                                     .embedding = mixed.data(kBf16, {16, 24}),
                                     .sources = mixed.plain(kI32, {5}, listed({0, 3, -1, -16, -7})),
                                     .out = mixed.out(dtype, {5, 24}),
                                     .scale = 5.0F}));

    for (const int64_t rows : {1, 10, 50}) {
      Maker c;
      list.add_bench(c.make(
          fmt::format("time_h{}.{}", rows, type_word(dtype)),
          ConcatRow{
              .x = c.data(dtype, {rows, 1024}), .row = c.data(dtype, {1, 1024}), .out = c.out(dtype, {rows, 2048})}));
    }
    Maker cv(3);
    list.add(
        cv.make(fmt::format("odd_view.{}", type_word(dtype)),
                ConcatRow{.x = cv.data(dtype, {5, 13}), .row = cv.data(dtype, {1, 7}), .out = cv.out(dtype, {5, 20})}));
  }
}

void add_patchify(List& list) {
  for (const DType dtype : {kF32, kU8}) {
    const Fill pixels = dtype == kU8 ? integers(0, 256) : normal(0.5);
    for (const int64_t images : {1, 3}) {
      Maker m;
      Case made = m.make(
          fmt::format("{}_images.{}", images, dtype == kU8 ? "u8" : "f32"),
          Patchify{.images = m.plain(dtype, {images, 224, 224, 3}, pixels), .out = m.out(kF32, {images * 256, 588})});
      made.bench = true;
      list.add(std::move(made));
    }
    Maker m;
    list.add(
        m.make(fmt::format("wide.{}", dtype == kU8 ? "u8" : "f32"),
               Patchify{.images = m.plain(dtype, {2, 10, 15, 3}, pixels), .out = m.out(kF32, {12, 75}), .patch = 5}));
  }
}

void add_rope(List& list) {
  const auto angles = [](int64_t dim) -> Fill {
    return [dim](Random&, int64_t i) {
      const int64_t position = i / dim;
      const int64_t pair = i % dim % (dim / 2);
      const double angle = static_cast<double>(position) *
                           std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(dim));
      return i % dim < dim / 2 ? std::cos(angle) : std::sin(angle);
    };
  };
  struct RopeShape {
    const char* name;
    int64_t rows, heads, dim, positions, margin;
    bool real;
  };
  const RopeShape shapes[] = {{"prefix_q", 788, 8, 256, 900, 0, true}, {"prefix_k", 788, 1, 256, 900, 0, true},
                              {"expert_q", 10, 8, 256, 900, 0, true},  {"expert_q_h50", 51, 8, 256, 900, 0, true},
                              {"small", 9, 3, 16, 40, 0, false},       {"view", 7, 2, 72, 20, 5, false},
                              {"one_pair", 3, 5, 2, 10, 1, false},     {"wide_head", 2, 2, 1100, 4, 0, false}};
  for (const RopeShape& s : shapes) {
    for (const DType dtype : {kF32, kBf16}) {
      Maker m(s.margin);
      const Shape shape = {s.rows, s.heads * s.dim};
      Case made = m.make(fmt::format("{}.{}", s.name, type_word(dtype)),
                         Rope{.x = m.data(dtype, shape),
                              .positions = m.plain(kI32, {s.rows}, integers(0, s.positions)),
                              .table = m.plain(kF32, {s.positions, s.dim}, angles(s.dim)),
                              .out = m.out(dtype, shape)});
      made.bench = s.real;
      list.add(std::move(made));
    }
  }
}

struct LinearShape {
  const char* name;
  int64_t m, n, k;
  bool bias = false;
  Activation activation = Activation::kNone;
  bool real = true;
  int64_t margin = 0;
};

const LinearShape kLinears[] = {
    {"patch", 768, 1152, 588, true},
    {"vision_qkv", 768, 1152, 1152, true},
    {"vision_up", 768, 4304, 1152, true, Activation::kGeluTanh},
    {"vision_down", 768, 1152, 4304, true},
    {"projector", 768, 2048, 1152, true},
    {"prefix_q", 788, 2048, 2048},
    {"prefix_kv", 788, 256, 2048},
    {"prefix_up", 788, 16384, 2048},
    {"prefix_down", 788, 2048, 16384},
    {"expert_q", 10, 2048, 1024},
    {"expert_kv", 10, 256, 1024},
    {"expert_o", 10, 1024, 2048},
    {"expert_up", 10, 4096, 1024},
    {"expert_down", 10, 1024, 4096},
    {"expert_up_h50", 50, 4096, 1024},
    {"expert_down_h50", 51, 1024, 4096},
    {"action_in", 10, 1024, 32, true},
    {"action_out", 10, 32, 1024, true},
    {"state", 1, 1024, 32, true},
    {"time_mlp", 10, 1024, 2048, true, Activation::kSilu},
    {"modulation", 1, 3072, 1024, true},
    {"vision_up_part", 100, 700, 1152, true, Activation::kGeluTanh, false},
    {"vision_down_part", 65, 300, 4304, true, Activation::kNone, false},
    {"prefix_up_part", 120, 600, 2048, false, Activation::kNone, false},
    {"prefix_down_part", 70, 150, 16384, false, Activation::kNone, false},
    {"one", 1, 1, 1, true, Activation::kNone, false},
    {"one_col", 5, 1, 33, true, Activation::kSilu, false},
    {"one_deep", 4, 19, 1, false, Activation::kNone, false},
    {"odd", 7, 37, 29, true, Activation::kGeluTanh, false},
    {"odd_wide", 3, 131, 75, false, Activation::kNone, false},
    {"chunk_edge", 6, 577, 40, true, Activation::kNone, false},
    {"rows_15", 15, 70, 130, true, Activation::kNone, false},
    {"rows_16", 16, 70, 130, true, Activation::kNone, false},
    {"rows_20", 20, 70, 130, true, Activation::kNone, false},
    {"rows_21", 21, 70, 130, true, Activation::kNone, false},
    {"rows_33", 33, 65, 97, false, Activation::kNone, false},
    {"view", 21, 96, 64, true, Activation::kNone, false, 7},
    {"odd_view", 2, 45, 51, true, Activation::kSilu, false, 3},
    {"empty", 0, 64, 64, false, Activation::kNone, false},
};

void add_linear(List& list) {
  struct Types {
    DType x, w, out;
    const char* name;
    bool bench;
  };
  const Types types[] = {{kF32, kF32, kF32, "f32", true},
                         {kBf16, kBf16, kBf16, "bf16", true},
                         {kF32, kBf16, kF32, "bf16_weights", false},
                         {kBf16, kF32, kBf16, "f32_weights", false},
                         {kBf16, kBf16, kF32, "bf16_to_f32", false}};
  for (const LinearShape& s : kLinears) {
    for (const Types& t : types) {
      Maker m(s.margin);
      const bool heavy = static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) > 3e8;
      Linear a{.x = m.data(t.x, {s.m, s.k}), .w = m.weight(t.w, s.n, s.k), .bias = {}, .out = {}};
      if (s.bias) a.bias = m.vector(s.n);
      a.out = m.out(t.out, {s.m, s.n});
      a.activation = s.activation;
      Case made = m.make(fmt::format("{}.{}", s.name, t.name), a);
      made.bench = s.real && t.bench;
      made.streamed = s.real && s.m < 64;
      made.slow = heavy;
      list.add(std::move(made));
    }
  }
}

struct AttentionShape {
  const char* name;
  int64_t samples, queries, capacity;
  int32_t heads, kv_heads;
  int64_t dim;
  std::vector<double> key_len;  // empty: no key_len
  int32_t extra_keys = 0, leading_block = 0;
  bool masked = false, real = false, packed = false;  // packed: q, k, v are columns of one buffer
  int64_t margin = 0;
};

// Cache rows that no query may see hold NaN; keys are counted from the sample's length and the query's own block.
Attention make_attention(Maker& m, const AttentionShape& s, DType dtype, double scale = 1.0) {
  const int64_t width = s.heads * s.dim;
  const int64_t kv_width = s.kv_heads * s.dim;
  Attention a;
  if (s.packed) {
    const Tensor qkv = m.data(dtype, {s.samples, s.queries, width + 2 * kv_width});
    a.q = qkv.col_range(0, width);
    a.k = qkv.col_range(width, kv_width);
    a.v = qkv.col_range(width + kv_width, kv_width);
  } else {
    const int64_t row_elements = kv_width + (s.margin > 0 ? 2 * s.margin + 3 : 0);
    const auto key_fill = [s, row_elements](Random& random, int64_t i) {
      const int64_t sample = i / row_elements / s.capacity;
      const int64_t key = i / row_elements % s.capacity;
      const double number = random.normal();
      if (s.key_len.empty()) return number;
      const int32_t extra = s.queries > s.leading_block ? s.extra_keys : s.leading_block;
      return static_cast<double>(key) < s.key_len[static_cast<size_t>(sample)] + extra ? number : kNaN;
    };
    a.q = m.data(dtype, {s.samples, s.queries, width}, scale);
    a.k = m.data(dtype, {s.samples, s.capacity, kv_width}, Fill(key_fill));
    a.v = m.data(dtype, {s.samples, s.capacity, kv_width}, Fill(key_fill));
  }
  if (!s.key_len.empty()) a.key_len = m.plain(kI32, {s.samples}, listed(s.key_len));
  if (s.masked) {
    const int64_t row = s.capacity + (s.margin > 0 ? 2 * s.margin + 3 : 0);
    a.key_mask = m.data(kU8, {s.samples, s.capacity}, [row](Random& random, int64_t i) {
      return i / row == 1 ? 0.0 : static_cast<double>(random.integer(0, 3));  // sample 1 sees nothing
    });
  }
  a.heads = s.heads, a.kv_heads = s.kv_heads;
  a.extra_keys = s.extra_keys, a.leading_block = s.leading_block;
  a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.dim)));
  return a;
}
Case attention_case(const AttentionShape& s, DType dtype, double scale = 1.0) {
  Maker m(s.margin);
  Attention a = make_attention(m, s, dtype, scale);
  a.out = m.out(dtype, a.q.shape);
  Case made = m.make(fmt::format("{}.{}", s.name, type_word(dtype)), a);
  made.bench = s.real;
  return made;
}
Case coded_attention_case(const AttentionShape& s, DType dtype, DType codes) {
  Maker m(s.margin);
  AttentionToCodes a{.attention = make_attention(m, s, dtype), .factors = {}, .out = {}};
  // Few keys leave large results, of which some are cut off.
  const double factor = scaled_max(codes) * std::sqrt(static_cast<double>(std::max<int64_t>(s.capacity, 1))) / 5;
  a.factors = m.plain(kF32, {a.attention.q.cols()},
                      [factor](Random& random, int64_t) { return factor * (0.5 + random.uniform()); });
  a.out = m.out(codes, a.attention.q.shape);
  return m.make(fmt::format("{}_{}.{}", dtype_name(codes), s.name, type_word(dtype)), a);
}

void add_attention(List& list) {
  const AttentionShape shapes[] = {
      {"vision", 3, 256, 256, 16, 16, 72, {}, 0, 0, false, true, true},
      {"prefix", 1, 788, 788, 8, 1, 256, {788}, 0, 0, false, true},
      {"expert_h10", 1, 10, 848, 8, 1, 256, {788}, 10, 0, false, true},
      {"expert_h50", 1, 51, 848, 8, 1, 256, {788}, 51, 1, false, true},
      {"no_key_len", 1, 5, 19, 4, 1, 16, {}},
      {"tiny_heads", 2, 4, 12, 2, 2, 3, {12, 5}},
      {"one", 1, 1, 1, 1, 1, 1, {}},
      {"one_key", 2, 3, 9, 2, 1, 16, {1, 0}, 0, 0},
      {"no_keys", 2, 3, 9, 2, 1, 16, {0, 4}},
      {"leading_block", 2, 6, 40, 8, 1, 16, {30, 17}, 6, 1},
      {"leading_only", 1, 2, 11, 2, 1, 72, {7}, 4, 2},
      {"masked", 3, 5, 33, 4, 2, 72, {33, 33, 20}, 0, 0, true},
      {"masked_extra", 2, 5, 33, 4, 1, 16, {12, 20}, 5, 2, true},
      {"view", 2, 7, 21, 4, 2, 24, {21, 9}, 0, 0, false, false, false, 6},
      {"masked_view", 2, 3, 21, 4, 4, 18, {20, 19}, 1, 0, true, false, false, 3},
      {"packed", 2, 17, 17, 3, 3, 16, {}, 0, 0, false, false, true},
      {"ragged_blocks", 1, 131, 67, 8, 2, 16, {60}, 7, 3},
      {"no_queries", 1, 0, 8, 2, 1, 16, {4}},
      {"few_of_many", 1, 5, 300, 8, 1, 16, {20}, 3},  // a card splits 300 keys; most parts get none
  };
  for (const AttentionShape& s : shapes) {
    for (const DType dtype : {kF32, kBf16}) list.add(attention_case(s, dtype));
    list.add(coded_attention_case(s, kBf16, DType::kI8));
  }
  // What a card has kernels of its own for: heads of 256 with many queries, heads of 72 with few keys.
  const AttentionShape wide[] = {
      {"streamed_ragged", 2, 70, 150, 8, 1, 256, {150, 83}},
      {"streamed_leading", 1, 130, 260, 8, 1, 256, {110}, 130, 5},
      {"streamed_masked", 3, 66, 130, 8, 1, 256, {130, 130, 77}, 0, 0, true},
      {"streamed_kv_heads", 1, 150, 90, 8, 2, 256, {64}},
      {"streamed_no_keys", 2, 64, 70, 8, 1, 256, {0, 1}},
      {"streamed_one_head", 1, 520, 65, 1, 1, 256, {}},
      {"cluster_samples", 9, 10, 120, 8, 1, 256, {90, 1, 0, 110, 47, 64, 100, 99, 13}, 10},
      {"cluster_leading", 2, 51, 130, 8, 1, 256, {70, 61}, 51, 1},
      {"held_ragged", 2, 70, 100, 3, 3, 72, {}},
      {"held_wider", 1, 130, 256, 2, 2, 80, {}},
      {"held_one", 1, 1, 1, 2, 2, 72, {}},
      {"held_packed", 1, 130, 130, 5, 5, 72, {}, 0, 0, false, false, true},
      {"held_many", 3, 200, 131, 16, 16, 72, {}},
  };
  for (const AttentionShape& s : wide) {
    list.add(attention_case(s, kBf16));
    for (const DType codes : {DType::kE4m3, DType::kI8}) list.add(coded_attention_case(s, kBf16, codes));
  }
  list.add(attention_case({"streamed_peaked", 1, 66, 200, 8, 1, 256, {200}}, kBf16, 16.0));
  const AttentionShape larger[] = {
      {"vision_one", 1, 256, 256, 16, 16, 72, {}, 0, 0, false, true, true},
      {"vision_two", 2, 256, 256, 16, 16, 72, {}, 0, 0, false, true, true},
      {"vision_batch", 12, 256, 256, 16, 16, 72, {}, 0, 0, false, true, true},
      {"prefix_532", 1, 532, 592, 8, 1, 256, {532}, 0, 0, false, true},
      {"prefix_816", 1, 816, 832, 8, 1, 256, {816}, 0, 0, false, true},
      {"prefix_968", 1, 968, 984, 8, 1, 256, {968}, 0, 0, false, true},
      {"expert_batch", 8, 10, 848, 8, 1, 256, std::vector<double>(8, 788), 10, 0, false, true},
      {"prefix_batch", 4, 788, 800, 8, 1, 256, {788, 760, 788, 770}, 0, 0, false, true},
  };
  for (const AttentionShape& s : larger) {
    for (Case made : {attention_case(s, kBf16), coded_attention_case(s, kBf16, DType::kI8)}) {
      made.slow = true;
      list.add(std::move(made));
    }
  }
  // Peaked softmax: logits of about ±60.
  list.add(attention_case({"peaked", 1, 9, 50, 2, 1, 16, {50}}, kF32, 40.0));
}

// One fused operation of every kind, at tiny sizes and at the real ones of one layer of the expert.
void add_fused(List& list) {
  for (const DType dtype : {kF32, kBf16}) {
    const char* type = type_word(dtype);
    struct Pictures {
      const char* name;
      DType pixels;
      int64_t count, height, width, patch, cols;
    };
    for (const Pictures& p :
         {Pictures{"tiny", kU8, 2, 28, 28, 14, 48}, Pictures{"tiny_floats", kF32, 2, 28, 28, 14, 48},
          Pictures{"wide", kU8, 3, 40, 60, 10, 75}, Pictures{"odd", kU8, 1, 21, 35, 7, 33},
          Pictures{"real", kU8, 3, 224, 224, 14, 1152}, Pictures{"real_batch", kU8, 24, 224, 224, 14, 1152}}) {
      const int64_t tokens = p.height / p.patch * (p.width / p.patch);
      const int64_t depth = 3 * p.patch * p.patch;
      Maker m;
      PatchEmbed a{.images = m.plain(p.pixels, {p.count, p.height, p.width, 3},
                                     p.pixels == kU8 ? integers(0, 256) : normal(0.5)),
                   .w = m.weight(kF32, p.cols, depth),
                   .bias = m.vector(p.cols),
                   .positions = m.plain(kF32, {tokens, p.cols}, normal()),
                   .out = m.out(dtype, {p.count * tokens, p.cols}),
                   .patch = static_cast<int32_t>(p.patch)};
      Case made = m.make(fmt::format("{}.{}", p.name, type), a);
      made.slow = made.bench = p.cols == 1152;
      list.add(std::move(made));
    }
    for (const bool real : {false, true}) {
      const int64_t rows = real ? 64 : 6;
      const int64_t width = real ? 1152 : 48;
      Maker m;
      LayerNormQkv a{.x = m.data(dtype, {rows, width}),
                     .gain = m.vector(width),
                     .bias = m.vector(width),
                     .wq = m.weight(dtype, width, width),
                     .wk = m.weight(dtype, width, width),
                     .wv = m.weight(dtype, width, width),
                     .bq = m.vector(width),
                     .bk = m.vector(width),
                     .bv = m.vector(width),
                     .out = m.out(dtype, {rows, 3 * width})};
      list.add(m.make(fmt::format("{}.{}", real ? "vision" : "tiny", type), a));
    }
    {
      Maker m;
      LayerNormLinear a{.x = m.data(dtype, {9, 48}),
                        .gain = m.vector(48),
                        .bias = m.vector(48),
                        .w = m.weight(dtype, 80, 48),
                        .linear_bias = m.vector(80),
                        .out = m.out(dtype, {9, 80}),
                        .activation = Activation::kGeluTanh};
      list.add(m.make(fmt::format("tiny.{}", type), a));
    }
    for (const bool gated : {false, true}) {
      Maker m;
      LinearResidual a{.x = m.data(dtype, {10, 512}),
                       .w = m.weight(dtype, 256, 512),
                       .bias = {},
                       .residual = m.data(dtype, {10, 256}),
                       .gate = {},
                       .out = {}};
      if (gated) {
        a.gate = m.vector(256);
      } else {
        a.bias = m.vector(256);
      }
      a.out = m.out(dtype, {10, 256});
      list.add(m.make(fmt::format("{}.{}", gated ? "gated" : "biased", type), a));
    }
    for (const bool adaptive : {false, true}) {
      for (const bool with_q : {true, false}) {
        Maker m;
        NormQkvRope a{.x = m.data(dtype, {10, 128}),
                      .norm = {},
                      .wq = {},
                      .wk = m.weight(dtype, 32, 128),
                      .wv = m.weight(dtype, 32, 128),
                      .positions = m.plain(kI32, {10}, integers(0, 50)),
                      .cache_rows = m.plain(kI32, {10}, counting(7)),
                      .table = m.plain(kF32, {50, 32}, normal(0.6)),
                      .q = {},
                      .k_cache = m.data(dtype, {1, 20, 32}),
                      .v_cache = m.data(dtype, {1, 20, 32})};
        if (with_q) {
          a.wq = m.weight(dtype, 256, 128);
          a.q = m.out(dtype, {10, 256});
        }
        if (adaptive) {
          a.norm.scale = m.vector(128);
          a.norm.shift = m.vector(128);
        } else {
          a.norm.gain = m.vector(128);
        }
        list.add(m.make(fmt::format("{}{}.{}", adaptive ? "adaptive" : "plain", with_q ? "" : "_kv_only", type), a));
      }
      Maker m;
      NormGateUpGelu a{.x = m.data(dtype, {11, 256}),
                       .norm = {},
                       .w_gate = m.weight(dtype, 400, 256),
                       .w_up = m.weight(dtype, 400, 256),
                       .out = m.out(dtype, {11, 400})};
      if (adaptive) {
        a.norm.scale = m.vector(256);
        a.norm.shift = m.vector(256);
      } else {
        a.norm.gain = m.vector(256);
      }
      list.add(m.make(fmt::format("{}.{}", adaptive ? "adaptive" : "plain", type), a));
    }
  }
}

// Everything that may follow a product, over the edges of tiles and on rows that are not 16-byte aligned.
void add_products(List& list) {
  const ProductShape shapes[] = {{"ragged", 33, 131, 75, 3},     {"ragged_depth", 70, 72, 200, 0},
                                 {"tiles", 130, 264, 136, 0},    {"wide_view", 97, 136, 64, 8},
                                 {"one_row", 1, 40, 64, 0},      {"narrow", 67, 5, 48, 0},
                                 {"split_depth", 6, 24, 3000, 0}};
  for (const ProductShape& s : shapes) {
    for (const DType dtype : {kF32, kBf16}) {
      const std::string name = fmt::format("{}.{}", s.name, type_word(dtype));
      for (const bool gated : {false, true}) list.add(residual_case(name, s, dtype, dtype, dtype, gated));
      for (const Activation activation : {Activation::kNone, Activation::kGeluTanh, Activation::kSilu}) {
        Maker m(s.margin);
        LayerNormLinear a = normed_linear(m, s, dtype, dtype, activation);
        a.out = m.out(dtype, {s.m, s.n});
        const char* const word = activation == Activation::kNone   ? ""
                                 : activation == Activation::kSilu ? "silu_"
                                                                   : "gelu_";
        list.add(m.make(word + name, a));
      }
      Maker m(s.margin);
      NormGateUpGelu gate_up = normed_gate_up(m, s, dtype, dtype);
      gate_up.out = m.out(dtype, {s.m, s.n});
      list.add(m.make(name, gate_up));
    }
  }
  // The large ones of a layer, for `bench`.
  const auto add_slow = [&](Case made) {
    made.slow = true;
    list.add_bench(std::move(made));
  };
  for (const auto& [name, rows, cols, depth] :
       {std::tuple{"vision_o", 768, 1152, 1152}, std::tuple{"vision_down", 768, 1152, 4304},
        std::tuple{"prefix_o", 788, 2048, 2048}, std::tuple{"prefix_down", 788, 2048, 16384}}) {
    Maker m;
    add_slow(m.make(fmt::format("{}.bf16", name), LinearResidual{.x = m.data(kBf16, {rows, depth}),
                                                                 .w = m.weight(kBf16, cols, depth),
                                                                 .bias = {},
                                                                 .residual = m.data(kBf16, {rows, cols}),
                                                                 .gate = {},
                                                                 .out = m.out(kBf16, {rows, cols})}));
  }
  Maker m;
  add_slow(m.make("prefix.bf16", NormGateUpGelu{.x = m.data(kBf16, {788, 2048}),
                                                .norm = {.gain = m.vector(2048), .scale = {}, .shift = {}},
                                                .w_gate = m.weight(kBf16, 16384, 2048),
                                                .w_up = m.weight(kBf16, 16384, 2048),
                                                .out = m.out(kBf16, {788, 16384})}));
}

}  // namespace

std::vector<Case> all_cases() {
  List list;
  add_patchify(list);
  add_linear(list);
  add_rows(list);
  add_norms(list);
  add_rope(list);
  add_attention(list);
  add_elementwise(list);
  add_fused(list);
  add_products(list);
  for (Case& loop : denoise_loop_cases()) list.add(std::move(loop));
  for (Case& scaled : scaled_cases()) list.add(std::move(scaled));
  for (Case& frames : frame_cases()) list.add(std::move(frames));
  for (Case& rope : rope_cases()) list.add(std::move(rope));
  for (Case& tile : tile_cases()) list.add(std::move(tile));
  return list.take();
}

std::vector<Fault> all_faults() {
  std::vector<Fault> faults = frame_faults();
  for (const double position : {-1.0, 10.0, 2e9}) {
    Maker m;
    faults.push_back({m.make("fault", Rope{.x = m.data(kF32, {3, 8}),
                                           .positions = m.plain(kI32, {3}, listed({0, position, 1})),
                                           .table = m.plain(kF32, {10, 4}, normal()),
                                           .out = m.out(kF32, {3, 8})}),
                      fmt::format("{}", static_cast<int64_t>(position))});
  }
  {
    Maker m;
    faults.push_back({m.make("fault", ScatterRows{.x = m.data(kF32, {3, 8}),
                                                  .rows = m.plain(kI32, {3}, listed({0, -1, 4})),
                                                  .out = m.data(kF32, {4, 8})}),
                      "4"});
  }
  for (const double row : {-1.0, 5.0}) {
    Maker m;
    faults.push_back({m.make("fault", GatherRows{.x = m.data(kF32, {5, 8}),
                                                 .rows = m.plain(kI32, {2}, listed({0, row})),
                                                 .out = m.out(kF32, {2, 8})}),
                      fmt::format("{}", static_cast<int64_t>(row))});
  }
  for (const double source : {3.0, -8.0, -2147483648.0}) {
    Maker m;
    faults.push_back({m.make("fault", GatherPrefix{.features = m.data(kF32, {3, 8}),
                                                   .embedding = m.data(kF32, {7, 8}),
                                                   .sources = m.plain(kI32, {2}, listed({-7, source})),
                                                   .out = m.out(kF32, {2, 8})}),
                      fmt::format("{}", static_cast<int64_t>(source))});
  }
  for (const double length : {-1.0, 9.0}) {  // capacity 10, 2 extra keys
    Maker m;
    Attention a{.q = m.data(kF32, {1, 2, 8}),
                .k = m.data(kF32, {1, 10, 8}),
                .v = m.data(kF32, {1, 10, 8}),
                .key_len = m.plain(kI32, {1}, listed({length})),
                .key_mask = {},
                .out = m.out(kF32, {1, 2, 8}),
                .heads = 1,
                .kv_heads = 1,
                .extra_keys = 2};
    faults.push_back({m.make("fault", a), fmt::format("{}", static_cast<int64_t>(length))});
  }
  return faults;
}

}  // namespace tendon::op_check
