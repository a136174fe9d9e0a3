// Our own matrix products: tensor-core tiles and plain multiply-adds, each with everything that may follow a product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "backend/gpu/stream.h"
#include "ops/basic_ops.h"

namespace tendon::gpu {

// Columns are heads of q, k and v: q and k are rotated, k and v go to the cache, as in norm_qkv_rope.
struct RopeTail {
  Tensor positions = {}, cache_rows = {}, table = {}, q = {}, k_cache = {}, v_cache = {};
  bool defined() const { return table.defined(); }
};

// y = act(x · wᵀ + bias);  with `up`: y = round(gelu_tanh(round(x · wᵀ))) · round(x · upᵀ);
// out = y + table[row mod T],  or  round(y) + residual,  or  residual + round(round(y) · round(gate)),  or  y.
// Roundings are to out's type, sums are f32; a kernel may leave out all but the last one. What is not wanted is
// undefined. With codes as operands, the product is the sum times the scales of its rows. Kernels that have no `rope`
// write `out` and leave it to launch_rope_cache; those that have need not. With `factors`, out has codes: what it would
// hold in bf16, times its column's factor, with unit scales. Only SpecialProducts may write them
// (Products::prepare_codes).
struct Product {
  Tensor x;              // (M, K) bf16 or f32, or codes like w
  Tensor w;              // (N, K) bf16 or f32, or codes like x
  Tensor up = {};        // (N, K) like w; then no bias, activation, table or residual
  Tensor bias = {};      // (N) f32
  Tensor table = {};     // (T, N) f32
  Tensor residual = {};  // (M, N) like out
  Tensor gate = {};      // (N) f32, only with a residual
  Tensor factors = {};   // (N) f32
  Tensor out;            // (M, N) bf16 or f32, or codes
  Activation activation = Activation::kNone;
  RopeTail rope = {};
};

// A way to cut a product: blocks of rows × cols outputs walk along K in steps of `depth`, `stages` steps are in shared
// memory at once. Plain products (no tensor cores, any types and alignment) have stages 1.
struct Tile {
  int rows, cols, depth, stages;
  float efficiency;  // share of the fastest tile's rate when there is work for every multiprocessor; for default_cut()
  int blocks_per_sm;
  int shared_bytes = 0;      // that a launch asks for
  int unit = 0;              // rows of the matrix unit, where a tile has a choice and takes the larger one
  bool codes = false;        // multiplies e4m3 or i8 codes, on tensor cores; other such tiles bf16
  std::string name() const;  // "128x256x64x3", "128x128x64x1m32"
};

// A tile and the number of parts that K is cut into; parts are summed in a fixed order by a second kernel.
struct Cut {
  int tile = 0;  // index into tiles()
  int splits = 1;
};

std::span<const Tile> tiles();
// The last of tiles(): takes every product.
int plain_tile();

// What the card has for a product.
struct CutRoom {
  size_t workspace_bytes;
  size_t shared_bytes = SIZE_MAX;  // of a block
  CutRoom(size_t workspace, size_t shared = SIZE_MAX) : workspace_bytes(workspace), shared_bytes(shared) {}
};

// The cut is allowed: types and alignment fit the tile, no part of K is empty, the parts fit the workspace and the tile
// a block's shared memory.
bool cut_fits(const Product& p, const Cut& cut, const CutRoom& room);
size_t cut_workspace_bytes(const Product& p, const Cut& cut);
// A choice for this shape without measurements.
Cut default_cut(const Product& p, int multiprocessors, const CutRoom& room);

void launch_product(const Product& p, const Cut& cut, void* workspace, Stream stream);

}  // namespace tendon::gpu
