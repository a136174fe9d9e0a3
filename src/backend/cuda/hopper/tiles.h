// The tiles of products on wgmma, as the host sees them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <cuda.h>

#include "backend/gpu/gemm.h"

namespace tendon::gpu::hopper {

// RopeTail of gpu/gemm.h.
struct TileRope {
  const float* table;  // (positions, D): cosines, then sines
  const int32_t *positions, *cache_rows;
  Bf16 *q, *k, *v;
  int64_t q_stride, cache_stride;
  int q_cols, k_cols;
  int half;  // of a head
};

// The tensors that a tile's kernel copies boxes of. The last two: where a product is followed by bias, GELU or
// residual, boxes of 64 columns of (rows, cols); `residual` is not read where none is added. Codes count in pairs.
struct TileMaps {
  CUtensorMap weights, tokens, out, residual;
};

// What it is given besides.
struct TileArgs {
  const float* bias;  // (cols), null: none
  bool adds;          // a residual
  void* out;          // (rows, cols), bf16 or codes; here and its stride: for GELU(gate) · up
  int64_t out_stride;
  int rows, cols;
  int steps;        // of kDepth along K
  int token_tiles;  // clusters' tiles along the rows
  int tiles;        // clusters' tiles in all
  // Of rows of codes: tokens, weights, up's; null: no codes.
  const float *x_scales, *w_scales, *up_scales;
  TileRope rope;
  // Of tiles that write codes: (cols) factors, and where the rows' scales go, which are 1.
  const float* factors;
  float* out_scales;
  // Of products with a table: (table_rows, cols), added to row `token mod table_rows`.
  const float* table;
  int64_t table_stride;
  int table_rows;
};

// What follows a product: bias and residual; bias and a table; bias and GELU; GELU(gate) · up; rotation.
enum class Tail { kPlain, kTable, kGelu, kGateUp, kRope };

// Of K in a stage, in pairs of bytes: 64 bf16 or 128 codes, which copies and their descriptions do not tell apart.
constexpr int kDepth = 64;

// weights × tokens outputs; `stages` steps of K are in shared memory at once. Blocks of a cluster share what they copy:
// cluster_tokens tiles have the same weights, cluster_weights tiles the same tokens; `parts` blocks share out K.
// Gate and up rows both count as weights.
struct TileShape {
  int weights, tokens, stages, cluster_weights, cluster_tokens, parts;
  int cluster() const { return cluster_weights * cluster_tokens * parts; }
  std::string name() const;  // "256x200x3/1x2/1"
};

struct TileInstance {
  TileShape shape;
  int box_tokens;  // of the boxes of `out` and `residual`
  void (*launch)(const TileMaps& maps, const TileArgs& args, int clusters, Stream stream);
  // How many clusters the current card runs at once; 0 when none. Throws Error(kDevice).
  int (*clusters_at_once)();
};

std::span<const TileInstance> plain_tiles();
std::span<const TileInstance> table_tiles();
std::span<const TileInstance> gelu_tiles();
std::span<const TileInstance> gate_up_tiles();
std::span<const TileInstance> rope_tiles();
// For codes.
std::span<const TileInstance> plain_i8_tiles();
std::span<const TileInstance> gelu_i8_tiles();
std::span<const TileInstance> gate_up_i8_tiles();
std::span<const TileInstance> rope_i8_tiles();
std::span<const TileInstance> plain_e4m3_tiles();
std::span<const TileInstance> gate_up_e4m3_tiles();
std::span<const TileInstance> rope_e4m3_tiles();
// For codes, and with codes as results.
std::span<const TileInstance> gelu_i8_to_codes_tiles();
std::span<const TileInstance> gate_up_i8_to_codes_tiles();
std::span<const TileInstance> gate_up_e4m3_to_codes_tiles();

}  // namespace tendon::gpu::hopper
