#include "tile_cases.h"

#include <fmt/format.h>

#include "maker.h"

namespace tendon::op_check {
namespace {

enum class Follows { kBias, kGelu, kResidual };

struct TileShape {
  int64_t m, n, k;
  Follows follows;
};

// Neither rows nor columns fill their tiles, nor K its last step.
Case tile_case(const TileShape& s, DType operands) {
  Maker m;
  const Tensor x = m.data(s.follows == Follows::kResidual ? kBf16 : operands, {s.m, s.k});
  const Tensor w = m.weight(operands, s.n, s.k);
  const Tensor bias = m.vector(s.n);
  const std::string name = fmt::format("tile_{}x{}x{}.{}", s.m, s.n, s.k, dtype_name(operands));
  if (s.follows == Follows::kResidual) {
    const Tensor residual = m.data(kBf16, {s.m, s.n});
    return m.make(name,
                  LinearResidual{
                      .x = x, .w = w, .bias = bias, .residual = residual, .gate = {}, .out = m.out(kBf16, {s.m, s.n})});
  }
  Linear a{.x = x, .w = w, .bias = bias, .out = m.out(kBf16, {s.m, s.n})};
  if (s.follows == Follows::kGelu) a.activation = Activation::kGeluTanh;
  return m.make(name, a);
}

Case tile_gate_up_case(const ProductShape& s, DType operands) {
  Maker m;
  NormGateUpGelu a = normed_gate_up(m, s, kBf16, operands);
  a.out = m.out(kBf16, {s.m, s.n});
  return m.make(fmt::format("tile_{}x{}x{}.{}", s.m, s.n, s.k, dtype_name(operands)), a);
}

// Codes with static scales as results: of GELU behind a layer norm, or of GELU(gate) · up.
Case tile_to_codes_case(const ProductShape& s, bool gate_up, DType codes) {
  Maker m;
  const auto made = [&](auto args) {
    args.factors = m.plain(kF32, {s.n}, [codes](Random& random, int64_t) {
      return static_cast<double>(scaled_max(codes)) / (1.0 + random.uniform());
    });
    args.out = m.out(codes, {s.m, s.n});
    return m.make(fmt::format("tile_{}x{}x{}.{}", s.m, s.n, s.k, dtype_name(codes)), args);
  };
  return gate_up ? made(normed_gate_up(m, s, kBf16, codes))
                 : made(normed_linear(m, s, kBf16, codes, Activation::kGeluTanh));
}

// A product with a table: patch embedding of pictures of 24 patches.
Case tile_patch_case(int64_t count, int64_t cols) {
  Maker m;
  const PatchEmbed a{.images = m.plain(kU8, {count, 20, 30, 3}, integers(0, 256)),
                     .w = m.weight(kF32, cols, 75),
                     .bias = m.vector(cols),
                     .positions = m.plain(kF32, {24, cols}, normal()),
                     .out = m.out(kBf16, {24 * count, cols}),
                     .patch = 5};
  return m.make(fmt::format("tile_{}x{}", 24 * count, cols), a);
}

}  // namespace

std::vector<Case> tile_cases() {
  std::vector<Case> list;
  // K tells a table's rows apart.
  for (int64_t i = 0; i < 16; ++i) {
    list.push_back(tile_case({300, 328, 264 + 8 * i, i % 3 == 2 ? Follows::kBias : Follows::kResidual}, kBf16));
  }
  for (int64_t i = 0; i < 2; ++i) list.push_back(tile_case({300, 328, 264 + 8 * i, Follows::kGelu}, kBf16));
  for (int64_t count = 9; count < 14; ++count) list.push_back(tile_patch_case(count, 328));  // M tells rows apart
  list.push_back(tile_patch_case(60, 1160));
  list.push_back(tile_case({1304, 1160, 136, Follows::kResidual}, kBf16));  // several tiles a block
  list.push_back(tile_case({1304, 1160, 144, Follows::kResidual}, kBf16));
  for (const auto& [codes, tiles] : {std::pair{DType::kI8, 11}, std::pair{DType::kE4m3, 5}}) {
    for (int64_t i = 0; i < tiles; ++i) {
      list.push_back(tile_case({300, 328, 400 + 16 * i, i % 3 == 2 ? Follows::kBias : Follows::kResidual}, codes));
    }
    list.push_back(tile_case({1304, 1160, 272, Follows::kResidual}, codes));
  }
  for (int64_t i = 0; i < 2; ++i) list.push_back(tile_case({300, 328, 400 + 16 * i, Follows::kGelu}, DType::kI8));
  const auto gate_up = [](int64_t depth) { return ProductShape{"", 300, 336, depth, 0}; };
  const ProductShape several{"", 1304, 2000, 272, 0};  // tiles a block
  for (int64_t i = 0; i < 2; ++i) list.push_back(tile_gate_up_case(gate_up(264 + 8 * i), kBf16));
  list.push_back(tile_gate_up_case(several, kBf16));
  for (int64_t i = 0; i < 2; ++i) list.push_back(tile_to_codes_case(gate_up(400 + 16 * i), false, DType::kI8));
  for (const auto& [codes, tiles] : {std::pair{DType::kI8, 5}, std::pair{DType::kE4m3, 4}}) {
    for (int64_t i = 0; i < tiles; ++i) list.push_back(tile_to_codes_case(gate_up(400 + 16 * i), true, codes));
    list.push_back(tile_to_codes_case(several, true, codes));
  }
  return list;
}

}  // namespace tendon::op_check
