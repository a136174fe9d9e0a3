// Tiles of products with bias, activation and residual (tile.cuh has the kernel).
#include "backend/cuda/hopper/instance.cuh"

namespace tendon::gpu::hopper {
namespace {

// Warpgroups, blocks of 64 weight rows of each, tokens, stages, cluster: weights, tokens; parts of K.
const TileInstance kTiles[] = {
    instance<WgmmaTile<2, 1, 200, 5, 1, 2>, false>(),
};

}  // namespace

std::span<const TileInstance> plain_tiles() { return kTiles; }

}  // namespace tendon::gpu::hopper
