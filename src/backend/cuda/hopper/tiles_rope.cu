// Tiles of products whose columns are rotated and go to q and the cache (tile.cuh has the kernel).
#include "backend/cuda/hopper/instance.cuh"

namespace tendon::gpu::hopper {
namespace {

// Warpgroups, blocks of 64 weight rows of each, tokens, stages, cluster: weights, tokens.
const TileInstance kTiles[] = {
    instance<WgmmaTile<2, 1, 136, 6>, Tail::kRope>(),      instance<WgmmaTile<2, 1, 136, 6, 1, 2>, Tail::kRope>(),
    instance<WgmmaTile<2, 1, 168, 5>, Tail::kRope>(),      instance<WgmmaTile<2, 1, 104, 7, 1, 2>, Tail::kRope>(),
    instance<WgmmaTile<2, 1, 64, 8, 1, 2>, Tail::kRope>(), instance<WgmmaTile<2, 2, 200, 3, 1, 2>, Tail::kRope>(),
};
// Of codes.
template <int kTokens, int kStages>
using I8Tile = WgmmaTile<2, 1, kTokens, kStages, 1, 2, 1, int8_t>;
const TileInstance kI8Tiles[] = {
    instance<I8Tile<144, 5>, Tail::kRope>(),
    instance<I8Tile<112, 6>, Tail::kRope>(),
    instance<I8Tile<64, 8>, Tail::kRope>(),
};

}  // namespace

std::span<const TileInstance> rope_tiles() { return kTiles; }
std::span<const TileInstance> rope_i8_tiles() { return kI8Tiles; }

}  // namespace tendon::gpu::hopper
