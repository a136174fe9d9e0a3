// Products: the tiles that exist, which of them takes what, and how one is launched.  Product in gemm.h has the
// formula; gemm_tile.cuh and gemm_plain.cuh the kernels.
#include "backend/gpu/gemm.h"

#include <algorithm>

#include "backend/gpu/aligned_rows.h"
#include "backend/gpu/gemm_plain.cuh"
#include "backend/gpu/gpu_rt.h"
#include "backend/gpu/tiles.cuh"

namespace tendon::gpu {
namespace {

// Sums the parts of K in their order, eight output columns a thread.
template <class T>
TENDON_KERNEL void join_parts_kernel(GemmSink sink, int splits) {
  const GemmEpilogue& e = sink.epilogue;
  const int col = (static_cast<int>(blockIdx.x) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
  const int row = static_cast<int>(blockIdx.y);
  if (col >= e.cols) return;
  const auto join = [&](int at) {
    const float* const part = sink.parts + row * sink.pitch + at;
    Eight<float> sums = load_eight(part);
#pragma unroll 4
    for (int s = 1; s < splits; ++s) {
      const Eight<float> next = load_eight(part + static_cast<int64_t>(s) * e.rows * sink.pitch);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[i] += next[i];
    }
    return sums;
  };
  if (sink.gate_up) {
    store_columns(e, row, col, finished_gate_up<T>(join(2 * col), join(2 * col + 8)));
  } else {
    const Eight<T> residual = load_residual<T>(e, row, col);
    store_columns(e, row, col, finished<T>(e, load_terms(e, col), row, col, join(col), residual));
  }
}

int64_t depth_steps(const Product& p, const Tile& tile) { return ceil_div(p.x.cols(), tile.depth); }
int64_t steps_per_part(const Product& p, const Cut& cut) {
  return ceil_div(depth_steps(p, tiles()[static_cast<size_t>(cut.tile)]), cut.splits);
}

template <class X, class W>
ProductArgs<X, W> args_of(const Product& p, const Cut& cut, const GemmSink& sink) {
  return {.x = p.x.as<X>(),
          .w = p.w.as<W>(),
          .up = p.up.as<W>(),
          .x_scales = p.x.scales,
          .w_scales = p.w.scales,
          .up_scales = p.up.scales,
          .x_stride = p.x.row_stride,
          .w_stride = p.w.row_stride,
          .sink = sink,
          .depth = static_cast<int>(p.x.cols()),
          .steps_per_part = static_cast<int>(steps_per_part(p, cut))};
}

struct Instance {
  Tile tile;
  void (*launch)(const Product& p, const Cut& cut, const GemmSink& sink, dim3 grid, Stream stream);
};

// kUnit: nothing, or the rows of the matrix unit.
struct MakeInstance {
  template <int kRows, int kCols, int kDepth, int kRowWaves, int kColWaves, int kStages, int... kUnit>
  static constexpr Instance tile(float efficiency, int blocks_per_sm) {
    constexpr int kBytes = tile_shared_bytes<Bf16, kRows, kCols, kDepth, kRowWaves, kColWaves, kStages, kUnit...>();
    return {{kRows, kCols, kDepth, kStages, efficiency, blocks_per_sm, kBytes, (0 + ... + kUnit), false},
            run<Bf16, kRows, kCols, kDepth, kRowWaves, kColWaves, kStages, kUnit...>};
  }
  template <int kRows, int kCols, int kDepth, int kRowWaves, int kColWaves, int kStages, int... kUnit>
  static constexpr Instance code_tile(float efficiency, int blocks_per_sm) {
    constexpr int kBytes = tile_shared_bytes<int8_t, kRows, kCols, kDepth, kRowWaves, kColWaves, kStages, kUnit...>();
    return {{kRows, kCols, kDepth, kStages, efficiency, blocks_per_sm, kBytes, (0 + ... + kUnit), true},
            [](const Product& p, const Cut& cut, const GemmSink& sink, dim3 grid, Stream stream) {
              const auto run_codes = p.w.dtype == DType::kE4m3
                                         ? run<E4m3, kRows, kCols, kDepth, kRowWaves, kColWaves, kStages, kUnit...>
                                         : run<int8_t, kRows, kCols, kDepth, kRowWaves, kColWaves, kStages, kUnit...>;
              run_codes(p, cut, sink, grid, stream);
            }};
  }

 private:
  template <class T, int kRows, int kCols, int kDepth, int kRowWaves, int kColWaves, int... kRest>
  static void run(const Product& p, const Cut& cut, const GemmSink& sink, dim3 grid, Stream stream) {
    launch<tile_gemm_kernel<T, kRows, kCols, kDepth, kRowWaves, kColWaves, kRest...>>(
        {.grid = grid,
         .block = kRowWaves * kColWaves * kWarpSize,
         .shared_bytes = tile_shared_bytes<T, kRows, kCols, kDepth, kRowWaves, kColWaves, kRest...>(),
         .stream = stream},
        args_of<T, T>(p, cut, sink));
  }
};

const auto kInstances = built_tiles<MakeInstance>();
constexpr int kInstanceCount = static_cast<int>(std::size(kInstances));

struct TileList {
  Tile list[kInstanceCount + 1];
  TileList() {
    for (int i = 0; i < kInstanceCount; ++i) list[i] = kInstances[static_cast<size_t>(i)].tile;
    list[kInstanceCount] = {kPlainTile, kPlainTile, kPlainDepth, 1, 0.05F, 2};
  }
};

// On tensor cores; within such a tile, offsets have 32 bits.
bool takes(const Tile& tile, const Product& p) {
  const auto takes_rows = [&](const Tensor& t) {
    return t.dtype == p.w.dtype && (tile.codes ? aligned_code_rows(t) : aligned_rows(t)) && t.row_stride < (1 << 23);
  };
  return takes_rows(p.x) && takes_rows(p.w) && (!p.up.defined() || takes_rows(p.up)) &&
         p.x.cols() % (tile.codes ? 16 : 8) == 0;
}

bool vector_operand(const Tensor& t) {
  const int64_t columns = 16 / static_cast<int64_t>(dtype_bytes(t.dtype));
  return t.row_stride % columns == 0 && is_aligned(t.data);
}

int64_t parts_pitch(const Product& p) { return ceil_div(p.out.cols(), 8) * 8 * (p.up.defined() ? 2 : 1); }
int64_t row_tiles(const Product& p, const Tile& tile) { return ceil_div(p.out.rows(), tile.rows); }
int64_t col_tiles(const Product& p, const Tile& tile) {
  return ceil_div(p.out.cols(), p.up.defined() ? tile.cols / 2 : tile.cols);
}

GemmSink sink_of(const Product& p, const Cut& cut, void* workspace) {
  const auto floats = [](const Tensor& t) { return t.defined() ? t.as<const float>() : nullptr; };
  return {.epilogue = {.bias = floats(p.bias),
                       .table = floats(p.table),
                       .gate = floats(p.gate),
                       .residual = p.residual.data,
                       .out = p.out.data,
                       .table_stride = p.table.row_stride,
                       .residual_stride = p.residual.row_stride,
                       .out_stride = p.out.row_stride,
                       .rows = static_cast<int>(p.out.rows()),
                       .cols = static_cast<int>(p.out.cols()),
                       .table_rows = p.table.defined() ? static_cast<int>(p.table.rows()) : 1,
                       .activation = p.activation,
                       .bf16_out = p.out.dtype == DType::kBf16,
                       .vectors = vector_operand(p.out) && (!p.residual.defined() || vector_operand(p.residual))},
          .parts = cut.splits > 1 ? static_cast<float*>(workspace) : nullptr,
          .pitch = parts_pitch(p),
          .gate_up = p.up.defined()};
}

template <class X, class W>
void launch_plain(const Product& p, const Cut& cut, const GemmSink& sink, Stream stream) {
  const Tile& tile = tiles()[static_cast<size_t>(cut.tile)];
  const dim3 grid(static_cast<unsigned>(row_tiles(p, tile)), static_cast<unsigned>(col_tiles(p, tile)),
                  static_cast<unsigned>(cut.splits));
  launch<plain_gemm_kernel<X, W>>({.grid = grid, .block = kPlainThreads, .stream = stream},
                                  args_of<X, W>(p, cut, sink));
}

}  // namespace

std::string Tile::name() const {  // the device compiler does not take fmt's checked format strings
  return std::to_string(rows) + "x" + std::to_string(cols) + "x" + std::to_string(depth) + "x" +
         std::to_string(stages) + (unit == 0 ? "" : "m" + std::to_string(unit));
}

std::span<const Tile> tiles() {
  static const TileList list;
  return list.list;
}

int plain_tile() { return kInstanceCount; }

size_t cut_workspace_bytes(const Product& p, const Cut& cut) {
  if (cut.splits == 1) return 0;
  return static_cast<size_t>(cut.splits) * static_cast<size_t>(p.out.rows() * parts_pitch(p)) * sizeof(float);
}

bool cut_fits(const Product& p, const Cut& cut, const CutRoom& room) {
  if (cut.tile < 0 || cut.tile > kInstanceCount || cut.splits < 1) return false;
  const Tile& tile = tiles()[static_cast<size_t>(cut.tile)];
  if (cut.tile != plain_tile() && !takes(tile, p)) return false;
  if (static_cast<size_t>(tile.shared_bytes) > room.shared_bytes) return false;
  if (p.up.defined() && (p.up.row_stride != p.w.row_stride || p.up.dtype != p.w.dtype)) return false;
  const int64_t steps = depth_steps(p, tile);
  if (cut.splits > 1 && p.out.rows() > 65535) return false;  // a row of the grid joins a row
  return (cut.splits - 1) * steps_per_part(p, cut) < std::max<int64_t>(steps, 1) &&
         cut_workspace_bytes(p, cut) <= room.workspace_bytes;
}

// The least of (rounds of blocks over the multiprocessors) × (a block's area and depth at the tile's rate), the fixed
// cost of a block and the traffic of the parts added.
Cut default_cut(const Product& p, int multiprocessors, const CutRoom& room) {
  Cut best{plain_tile(), 1};
  double best_cost = 0;
  for (int t = 0; t <= kInstanceCount; ++t) {
    const Tile& tile = tiles()[static_cast<size_t>(t)];
    const int64_t blocks = row_tiles(p, tile) * col_tiles(p, tile);
    for (const int splits : {1, 2, 3, 4, 6, 8, 12, 16}) {
      const Cut cut{t, splits};
      if (!cut_fits(p, cut, room)) continue;
      // Below a full load, the blocks of a multiprocessor share its rate; one block alone has about 0.7 of it.
      const auto rounds = static_cast<double>(ceil_div(blocks * splits, multiprocessors));
      const double shared = tile.blocks_per_sm > 1 && rounds < 2 ? 0.75 : 1.0;
      const auto steps = static_cast<double>(steps_per_part(p, cut));
      const double block_cost =
          static_cast<double>(tile.rows) * tile.cols * (steps * tile.depth + 128.0) / (tile.efficiency * shared);
      const double join_cost = splits == 1 ? 0.0
                                           : 4e6 + 40.0 * static_cast<double>(cut_workspace_bytes(p, cut)) /
                                                       static_cast<double>(multiprocessors);
      const double total = rounds * block_cost + join_cost;
      if (best_cost == 0 || total < best_cost) best = cut, best_cost = total;
    }
  }
  return best;
}

void launch_product(const Product& p, const Cut& cut, void* workspace, Stream stream) {
  if (p.out.elements() == 0) return;
  const GemmSink sink = sink_of(p, cut, workspace);
  if (cut.tile != plain_tile()) {
    const Instance& instance = kInstances[static_cast<size_t>(cut.tile)];
    const dim3 grid(static_cast<unsigned>(row_tiles(p, instance.tile) * col_tiles(p, instance.tile)),
                    static_cast<unsigned>(cut.splits));
    instance.launch(p, cut, sink, grid, stream);
  } else if (p.w.dtype == DType::kE4m3) {
    launch_plain<E4m3, E4m3>(p, cut, sink, stream);
  } else if (p.w.dtype == DType::kI8) {
    launch_plain<int8_t, int8_t>(p, cut, sink, stream);
  } else {
    with_float_type(p.x.dtype, [&]<class X>(X) {
      with_float_type(p.w.dtype, [&]<class W>(W) { launch_plain<X, W>(p, cut, sink, stream); });
    });
  }
  if (cut.splits > 1) {
    constexpr int kThreads = 128;
    const dim3 grid(static_cast<unsigned>(ceil_div(p.out.cols(), 8 * kThreads)), static_cast<unsigned>(p.out.rows()));
    with_float_type(p.out.dtype, [&]<class T>(T) {
      launch<join_parts_kernel<T>>({.grid = grid, .block = kThreads, .stream = stream}, sink, cut.splits);
    });
  }
}

}  // namespace tendon::gpu
