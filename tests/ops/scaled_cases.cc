#include "scaled_cases.h"

#include "maker.h"

namespace tendon::op_check {
namespace {

// Of columns of normal numbers: some codes are cut off, some columns are small.
Tensor factors(Maker& m, int64_t cols, DType codes) {
  return m.plain(kF32, {cols}, [codes](Random& random, int64_t i) {
    return static_cast<double>(scaled_max(codes)) / (i % 7 == 2 ? 20.0 : 2.0 + random.uniform());
  });
}

// A norm, a product with such weights and GELU; its result as it is, or as codes with static scales.
void add_normed(List& list, const std::string& name, const ProductShape& s, DType dtype, DType codes, bool is_static) {
  const std::string full = (is_static ? "static_" : "") + name;
  const auto result = [&](Maker& m, auto& args) {
    if (is_static) args.factors = factors(m, s.n, codes);
    args.out = m.out(is_static ? codes : dtype, {s.m, s.n});
  };
  Maker layer(s.margin);
  LayerNormLinear vision = normed_linear(layer, s, dtype, codes, Activation::kGeluTanh);
  result(layer, vision);
  list.add(layer.make(full, vision));
  Maker m(s.margin);
  NormGateUpGelu prefix = normed_gate_up(m, s, dtype, codes);
  result(m, prefix);
  list.add(m.make(full, prefix));
}

// Casts to these codes, and every operation with weights of them.
void add_scaled(List& list, DType codes) {
  const std::string_view type = dtype_name(codes);
  const MatrixShape rows[] = {{"edge", 3, 513, false},         {"odd_view", 9, 129, false, 5},
                              {"view", 33, 256, false, 8},     {"one_col", 7, 1, false},
                              {"vision", 768, 1152, true},     {"prefix", 788, 2048, true},
                              {"many_rows", 2050, 264, false}, {"empty", 0, 64, false}};
  for (const MatrixShape& s : rows) {
    for (const DType dtype : {kF32, kBf16}) {
      Maker m(s.margin);
      const Fill some_zero_rows = [cols = s.cols](Random& random, int64_t i) {
        const double value = random.normal() * (1.0 + 100.0 * static_cast<double>(random.uniform() < 0.01));
        return i / cols % 5 == 3 ? 0.0 : value;
      };
      Case made =
          m.make(fmt::format("{}_{}.{}", type, s.name, type_word(dtype)),
                 Cast{.x = m.data(dtype, {s.rows, s.cols}, some_zero_rows), .out = m.out(codes, {s.rows, s.cols})});
      made.bench = s.real && dtype == kBf16;
      made.slow = s.real;
      list.add(std::move(made));
    }
  }
  for (const MatrixShape& s : rows) {
    for (const DType dtype : {kF32, kBf16}) {
      Maker m(s.margin);
      Case made = m.make(fmt::format("of_{}_{}.{}", type, s.name, type_word(dtype)),
                         Cast{.x = m.data(codes, {s.rows, s.cols}), .out = m.out(dtype, {s.rows, s.cols})});
      made.slow = s.real;
      list.add(std::move(made));
    }
  }
  for (const MatrixShape& s : rows) {  // weights at the start, and operands with static scales
    for (const bool unit : {false, true}) {
      for (const DType dtype : {kF32, kBf16}) {
        Maker m(s.margin);
        Case made = m.make(fmt::format("{}_{}_{}.{}", type, unit ? "static" : "factors", s.name, type_word(dtype)),
                           Cast{.x = m.data(dtype, {s.rows, s.cols}, 2.0),
                                .factors = factors(m, s.cols, codes),
                                .out = m.out(codes, {s.rows, s.cols}),
                                .unit_scales = unit});
        made.slow = s.real;
        list.add(std::move(made));
      }
    }
  }
  const ProductShape products[] = {{"ragged", 33, 131, 75, 3},      {"depth", 70, 72, 200, 0},
                                   {"tiles", 66, 136, 128, 0},      {"blocks", 70, 72, 208, 0},
                                   {"one_row", 1, 40, 64, 0},       {"split", 6, 24, 3000, 0},
                                   {"many_rows", 2050, 24, 208, 0}, {"none", 0, 24, 64, 0}};
  for (const ProductShape& s : products) {
    for (const DType dtype : {kF32, kBf16}) {
      const std::string name = fmt::format("{}_{}.{}", type, s.name, type_word(dtype));
      for (const Activation activation : {Activation::kNone, Activation::kGeluTanh}) {
        Maker m(s.margin);
        Linear a{.x = m.data(codes, {s.m, s.k}), .w = m.weight(codes, s.n, s.k), .bias = {}, .out = {}};
        if (activation != Activation::kNone) a.bias = m.vector(s.n);
        a.out = m.out(dtype, {s.m, s.n});
        a.activation = activation;
        list.add(m.make((activation == Activation::kNone ? "" : "gelu_") + name, a));
      }
      if (s.m == 0) continue;
      for (const bool gated : {false, true}) {
        list.add(residual_case(name, s, dtype, dtype, codes, gated));
        list.add(residual_case("of_codes_" + name, s, codes, dtype, codes, gated));
      }
      for (const bool is_static : {false, true}) add_normed(list, name, s, dtype, codes, is_static);
    }
  }
  for (const DType dtype : {kF32, kBf16}) {
    Maker vision;
    list.add(
        vision.make(fmt::format("{}.{}", type, type_word(dtype)), LayerNormQkv{.x = vision.data(dtype, {6, 48}),
                                                                               .gain = vision.vector(48),
                                                                               .bias = vision.vector(48),
                                                                               .wq = vision.weight(codes, 48, 48),
                                                                               .wk = vision.weight(codes, 48, 48),
                                                                               .wv = vision.weight(codes, 48, 48),
                                                                               .bq = vision.vector(48),
                                                                               .bk = vision.vector(48),
                                                                               .bv = vision.vector(48),
                                                                               .out = vision.out(dtype, {6, 144})}));
    Maker m;
    list.add(m.make(fmt::format("{}.{}", type, type_word(dtype)),
                    NormQkvRope{.x = m.data(dtype, {10, 128}),
                                .norm = {.gain = m.vector(128), .scale = {}, .shift = {}},
                                .wq = m.weight(codes, 256, 128),
                                .wk = m.weight(codes, 32, 128),
                                .wv = m.weight(codes, 32, 128),
                                .positions = m.plain(kI32, {10}, integers(0, 50)),
                                .cache_rows = m.plain(kI32, {10}, counting(7)),
                                .table = m.plain(kF32, {50, 32}, normal(0.6)),
                                .q = m.out(dtype, {10, 256}),
                                .k_cache = m.data(dtype, {1, 20, 32}),
                                .v_cache = m.data(dtype, {1, 20, 32})}));
  }
}

}  // namespace

std::vector<Case> scaled_cases() {
  List list;
  for (const DType codes : {DType::kE4m3, DType::kI8}) add_scaled(list, codes);
  return list.take();
}

}  // namespace tendon::op_check
