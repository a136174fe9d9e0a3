// Tiles of products of i8 codes with bias and residual (tile.cuh has the kernel).
#include "backend/cuda/hopper/instance.cuh"

namespace tendon::gpu::hopper {
namespace {

template <int kWarpgroups, int kBlocks, int kTokens, int kStages, int kClusterTokens = 1, int kParts = 1>
using I8Tile = WgmmaTile<kWarpgroups, kBlocks, kTokens, kStages, 1, kClusterTokens, kParts, int8_t>;

// Warpgroups, blocks of 64 weight rows of each, tokens, stages; tiles that share weights, parts of K.
const TileInstance kTiles[] = {
    instance<I8Tile<2, 1, 208, 4, 1, 2>, Tail::kPlain>(), instance<I8Tile<2, 1, 192, 5, 1, 3>, Tail::kPlain>(),
    instance<I8Tile<2, 1, 128, 6, 1, 2>, Tail::kPlain>(), instance<I8Tile<2, 1, 112, 6, 2>, Tail::kPlain>(),
    instance<I8Tile<2, 1, 144, 5, 2>, Tail::kPlain>(),    instance<I8Tile<2, 1, 64, 8, 2>, Tail::kPlain>(),
    instance<I8Tile<3, 1, 112, 5>, Tail::kPlain>(),       instance<I8Tile<3, 1, 160, 4>, Tail::kPlain>(),
    instance<I8Tile<2, 2, 160, 4>, Tail::kPlain>(),       instance<I8Tile<2, 1, 64, 8, 4>, Tail::kPlain>(),
    instance<I8Tile<2, 1, 112, 6, 4>, Tail::kPlain>(),
};

}  // namespace

std::span<const TileInstance> plain_i8_tiles() { return kTiles; }

}  // namespace tendon::gpu::hopper
