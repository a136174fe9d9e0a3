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

}  // namespace

std::span<const TileInstance> rope_tiles() { return kTiles; }

}  // namespace tendon::gpu::hopper
