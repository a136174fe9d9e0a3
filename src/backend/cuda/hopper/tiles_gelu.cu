// Tiles of products with bias and GELU (tile.cuh has the kernel).
#include "backend/cuda/hopper/instance.cuh"

namespace tendon::gpu::hopper {
namespace {

// Warpgroups, blocks of 64 weight rows of each, tokens, stages, cluster: weights, tokens.
const TileInstance kTiles[] = {
    instance<WgmmaTile<3, 1, 160, 4>, Tail::kGelu>(),
    instance<WgmmaTile<2, 2, 112, 4>, Tail::kGelu>(),
};

}  // namespace

std::span<const TileInstance> gelu_tiles() { return kTiles; }

}  // namespace tendon::gpu::hopper
