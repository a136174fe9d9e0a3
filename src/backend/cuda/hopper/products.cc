#include "backend/cuda/hopper/products.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "backend/cuda/cuda_runtime.h"
#include "backend/cuda/hopper/tensor_maps.h"
#include "backend/cuda/hopper/tiles.h"
#include "backend/gpu/aligned_rows.h"
#include "backend/gpu/products.h"
#include "base/check.h"

namespace tendon::gpu::hopper {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Not written by an operation of the plan: copied before the kernels in front have ended.
bool constant(const Tensor& t) { return t.value < 0; }

// Rows that are copied in pieces of 16 bytes.
bool operand_fits(const Tensor& t) {
  return is_scaled(t.dtype) ? t.row_stride % 16 == 0 && t.cols() % 16 == 0 && is_aligned(t.data) : aligned_rows(t);
}
// Bytes of a row, in the pairs that copies count.
int64_t row_pairs(const Tensor& t) { return t.cols() * static_cast<int64_t>(dtype_bytes(t.dtype)) / 2; }

// Codes: of the operands' kind, and as their operands are.
bool result_fits(const Product& p) {
  if (!is_scaled(p.out.dtype)) return aligned_rows(p.out) && !p.factors.defined();
  return p.out.dtype == p.w.dtype && operand_fits(p.out) && p.factors.defined() && constant(p.factors) &&
         is_aligned(p.factors.data);
}

// From a row of the gate weights to the same of the up weights.
int64_t up_bytes(const Product& p) { return static_cast<char*>(p.up.data) - static_cast<char*>(p.w.data); }

// Heads that boxes of so many rows of the weights divide, or that divide them.
bool rope_fits(const Product& p, int64_t box_rows) {
  const int64_t head = p.rope.table.cols();
  return !p.up.defined() && !p.bias.defined() && !p.residual.defined() && p.activation == Activation::kNone &&
         head % 64 == 0 && (head % box_rows == 0 || box_rows % head == 0) && constant(p.rope.table) &&
         is_aligned(p.rope.table.data) && (!p.rope.q.defined() || aligned_rows(p.rope.q)) &&
         aligned_rows(p.rope.k_cache) && aligned_rows(p.rope.v_cache) &&
         p.rope.k_cache.row_stride == p.rope.v_cache.row_stride;
}

using Tiles = std::span<const TileInstance>;
Tiles tiles_of(DType operands, Tail tail, DType result) {
  const bool i8 = operands == DType::kI8;
  if (is_scaled(result)) {
    if (tail == Tail::kGelu && i8) return gelu_i8_to_codes_tiles();
    if (tail != Tail::kGateUp || operands == DType::kBf16) return {};
    return i8 ? gate_up_i8_to_codes_tiles() : gate_up_e4m3_to_codes_tiles();
  }
  const auto pick = [&](Tiles of_bf16, Tiles of_i8, Tiles of_e4m3) {
    return i8 ? of_i8 : operands == DType::kE4m3 ? of_e4m3 : of_bf16;
  };
  switch (tail) {
    case Tail::kPlain:
      return pick(plain_tiles(), plain_i8_tiles(), plain_e4m3_tiles());
    case Tail::kTable:
      return pick(table_tiles(), {}, {});
    case Tail::kGelu:
      return pick(gelu_tiles(), gelu_i8_tiles(), {});
    case Tail::kGateUp:
      return pick(gate_up_tiles(), gate_up_i8_tiles(), gate_up_e4m3_tiles());
    case Tail::kRope:
      return pick(rope_tiles(), rope_i8_tiles(), rope_e4m3_tiles());
  }
  return {};
}

Tiles tiles_for(const gemm::Desc& desc) {
  const auto has = [&](std::string_view word) { return desc.epilogue.find(word) != std::string::npos; };
  const Tail tail = has("rope")       ? Tail::kRope
                    : has("gelu_mul") ? Tail::kGateUp
                    : has("table")    ? Tail::kTable
                    : has("gelu")     ? Tail::kGelu
                                      : Tail::kPlain;
  return tiles_of(desc.w, tail, desc.out);
}

const TileInstance* find(Tiles tiles, std::string_view kernel) {
  const auto found = std::ranges::find_if(tiles, [&](const TileInstance& t) { return t.shape.name() == kernel; });
  return found == tiles.end() ? nullptr : &*found;
}

class HopperProducts final : public SpecialProducts {
 public:
  explicit HopperProducts(TensorMaps maps) : maps_(maps) {}

  std::string_view name() const override { return "wgmma"; }
  bool exists(std::string_view kernel) const override {
    for (const DType operands : {DType::kBf16, DType::kI8, DType::kE4m3}) {
      for (const Tail tail : {Tail::kPlain, Tail::kTable, Tail::kGelu, Tail::kGateUp, Tail::kRope}) {
        if (find(tiles_of(operands, tail, DType::kBf16), kernel) != nullptr) return true;
      }
    }
    return false;
  }
  std::vector<std::string> kernels(const Product& p) const override {
    std::vector<std::string> names;
    for (const TileInstance& tile : tiles_for(describe(p))) {
      if (takes(p, tile)) names.push_back(tile.shape.name());
    }
    return names;
  }
  bool takes(const Product& p, std::string_view kernel) const override {
    const TileInstance* const tile = find(tiles_for(describe(p)), kernel);
    return tile != nullptr && takes(p, *tile);
  }
  Launch prepare(const Product& p, std::string_view kernel) const override;

 private:
  static bool takes(const Product& p, const TileInstance& tile);
  int clusters_at_once(const TileInstance& tile) const;

  TensorMaps maps_;
  mutable std::map<const TileInstance*, int> clusters_;  // of each tile that was prepared
};

bool HopperProducts::takes(const Product& p, const TileInstance& tile) {
  constexpr int64_t kMost = int64_t{1} << 30;  // coordinates have 32 bits
  const bool rows_fit = operand_fits(p.x) && operand_fits(p.w) && p.x.dtype == p.w.dtype && result_fits(p) &&
                        constant(p.w) && constant(p.bias) && p.x.cols() % 8 == 0 && p.x.cols() > 0 &&
                        p.out.cols() % 8 == 0 && p.out.rows() > 0 && p.out.rows() < kMost && p.out.cols() < kMost &&
                        p.x.cols() < kMost;
  const bool up_fits =
      !p.up.defined() || (operand_fits(p.up) && p.up.dtype == p.w.dtype && constant(p.up) &&
                          p.up.row_stride == p.w.row_stride && up_bytes(p) > 0 && up_bytes(p) < int64_t{1} << 40);
  const bool tail_fits =
      (!p.table.defined() || (!p.residual.defined() && !p.up.defined() && !p.rope.defined() &&
                              p.activation == Activation::kNone && constant(p.table))) &&
      !p.gate.defined() && p.activation != Activation::kSilu &&
      (!p.residual.defined() || (!p.up.defined() && p.activation == Activation::kNone && aligned_rows(p.residual))) &&
      (!p.up.defined() || (!p.bias.defined() && p.activation == Activation::kNone));
  const bool rope_fit = !p.rope.defined() || rope_fits(p, tile.shape.weights / tile.shape.cluster_tokens);
  return rows_fit && up_fits && tail_fits && rope_fit && ceil_div(row_pairs(p.x), kDepth) >= tile.shape.parts;
}

// Asking the driver takes longer than the rest of preparing.
int HopperProducts::clusters_at_once(const TileInstance& tile) const {
  const auto [entry, is_new] = clusters_.try_emplace(&tile, 0);
  if (is_new) entry->second = tile.clusters_at_once();
  return entry->second;
}

Launch HopperProducts::prepare(const Product& p, std::string_view kernel) const {
  const TileInstance* const tile = find(tiles_for(describe(p)), kernel);
  if (tile == nullptr || !takes(p, *tile)) return {};
  const TileShape& shape = tile->shape;
  const bool gate_up = p.up.defined();
  const int at_once = clusters_at_once(*tile);
  if (at_once == 0) return {};

  const auto depth = static_cast<uint64_t>(row_pairs(p.x));
  const auto stride = static_cast<uint64_t>(p.w.row_stride) * dtype_bytes(p.w.dtype);
  const auto w_rows = static_cast<uint64_t>(p.w.rows());
  const auto w_box = static_cast<uint32_t>(shape.weights / shape.cluster_tokens);
  TileMaps maps{};
  if (gate_up && p.factors.defined()) {  // the same of every second column, then of the others, for each 64
    maps.weights =
        maps_.describe(p.w.data, std::array<uint64_t, 5>{depth, 8, 2, w_rows / 16, 2},
                       std::array<uint64_t, 4>{2 * stride, static_cast<uint64_t>(up_bytes(p)), 16 * stride, stride},
                       std::array<uint32_t, 5>{kDepth, 8, 2, 4, 2});
  } else if (gate_up) {  // eight rows of gate, eight of up, and so on
    maps.weights = maps_.describe(p.w.data, std::array<uint64_t, 4>{depth, 8, 2, w_rows / 8},
                                  std::array<uint64_t, 3>{stride, static_cast<uint64_t>(up_bytes(p)), 8 * stride},
                                  std::array<uint32_t, 4>{kDepth, 8, 2, w_box / 16});
  } else if (p.rope.defined()) {  // eight rows of a head's first half, eight of its second
    const auto head = static_cast<uint64_t>(p.rope.table.cols());
    const uint32_t octets = std::min(w_box / 16, static_cast<uint32_t>(head / 16));
    maps.weights = maps_.describe(p.w.data, std::array<uint64_t, 5>{depth, 8, 2, head / 16, w_rows / head},
                                  std::array<uint64_t, 4>{stride, head / 2 * stride, 8 * stride, head * stride},
                                  std::array<uint32_t, 5>{kDepth, 8, 2, octets, w_box / 16 / octets});
  } else if (p.factors.defined()) {  // every second of sixteen rows, then the others
    maps.weights = maps_.describe(p.w.data, std::array<uint64_t, 4>{depth, 8, 2, w_rows / 16},
                                  std::array<uint64_t, 3>{2 * stride, stride, 16 * stride},
                                  std::array<uint32_t, 4>{kDepth, 8, 2, w_box / 16});
  } else {
    maps.weights = maps_.describe(p.w.data, std::array<uint64_t, 2>{depth, w_rows}, std::array<uint64_t, 1>{stride},
                                  std::array<uint32_t, 2>{kDepth, w_box});
  }
  maps.tokens =
      maps_.describe(p.x.data, std::array<uint64_t, 2>{depth, static_cast<uint64_t>(p.x.rows())},
                     std::array<uint64_t, 1>{static_cast<uint64_t>(p.x.row_stride) * dtype_bytes(p.x.dtype)},
                     std::array<uint32_t, 2>{kDepth, static_cast<uint32_t>(shape.tokens / shape.cluster_weights)});

  if (!gate_up && !p.rope.defined()) {
    const auto strips = [&](const Tensor& t) {
      const bool codes = is_scaled(t.dtype);
      return maps_.describe(
          t.data, std::array<uint64_t, 2>{static_cast<uint64_t>(row_pairs(t)), static_cast<uint64_t>(t.rows())},
          std::array<uint64_t, 1>{static_cast<uint64_t>(t.row_stride) * dtype_bytes(t.dtype)},
          std::array<uint32_t, 2>{codes ? 32U : 64U, static_cast<uint32_t>(tile->box_tokens)},
          codes ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B);
    };
    maps.out = strips(p.out);
    if (p.residual.defined()) maps.residual = strips(p.residual);
  }

  const int64_t token_tiles = ceil_div(p.out.rows(), int64_t{shape.tokens} * shape.cluster_tokens);
  const int64_t weight_tiles =
      ceil_div(p.out.cols() * (gate_up ? 2 : 1), int64_t{shape.weights} * shape.cluster_weights);
  TileRope rope{};
  if (p.rope.defined()) {
    rope = {.table = p.rope.table.as<float>(),
            .positions = p.rope.positions.as<int32_t>(),
            .cache_rows = p.rope.cache_rows.as<int32_t>(),
            .q = p.rope.q.as<Bf16>(),
            .k = p.rope.k_cache.as<Bf16>(),
            .v = p.rope.v_cache.as<Bf16>(),
            .q_stride = p.rope.q.row_stride,
            .cache_stride = p.rope.k_cache.row_stride,
            .q_cols = p.rope.q.defined() ? static_cast<int>(p.rope.q.cols()) : 0,
            .k_cols = static_cast<int>(p.rope.k_cache.cols()),
            .half = static_cast<int>(p.rope.table.cols() / 2)};
  }
  const TileArgs args{.bias = p.bias.defined() ? p.bias.as<const float>() : nullptr,
                      .adds = p.residual.defined(),
                      .out = p.out.data,
                      .out_stride = p.out.row_stride,
                      .rows = static_cast<int>(p.out.rows()),
                      .cols = static_cast<int>(p.out.cols()),
                      .steps = static_cast<int>(ceil_div(row_pairs(p.x), kDepth)),
                      .token_tiles = static_cast<int>(token_tiles),
                      .tiles = static_cast<int>(token_tiles * weight_tiles),
                      .x_scales = p.x.scales,
                      .w_scales = p.w.scales,
                      .up_scales = p.up.scales,
                      .rope = rope,
                      .factors = p.factors.as<float>(),
                      .out_scales = p.out.scales,
                      .table = p.table.as<const float>(),
                      .table_stride = p.table.row_stride,
                      .table_rows = p.table.defined() ? static_cast<int>(p.table.rows()) : 0};
  // A cluster takes tile after tile, but only one where its blocks share out K.
  const int clusters = shape.parts > 1 ? args.tiles : std::min(args.tiles, at_once);
  return [=](Stream stream) { tile->launch(maps, args, clusters, stream); };
}

}  // namespace

std::string TileShape::name() const {
  return fmt::format("{}x{}x{}/{}x{}/{}", weights, tokens, stages, cluster_weights, cluster_tokens, parts);
}

bool has_tile(const gemm::Desc& desc, std::string_view kernel) { return find(tiles_for(desc), kernel) != nullptr; }

std::unique_ptr<SpecialProducts> open_products(Runtime& runtime) {
  if (runtime.architecture() != 90) return nullptr;
  runtime.make_current();
  const std::optional<TensorMaps> maps = TensorMaps::open();
  return maps ? std::make_unique<HopperProducts>(*maps) : nullptr;
}

}  // namespace tendon::gpu::hopper
