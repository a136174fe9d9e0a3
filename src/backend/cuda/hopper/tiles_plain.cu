// Tiles of products with bias, activation and residual (tile.cuh has the kernel).
#include "backend/cuda/hopper/instance.cuh"

namespace tendon::gpu::hopper {
namespace {

// Warpgroups, blocks of 64 weight rows of each, tokens, stages, cluster: weights, tokens; parts of K.
const TileInstance kTiles[] = {
    instance<WgmmaTile<2, 1, 200, 5, 1, 1, 2>, Tail::kPlain>(),
    instance<WgmmaTile<2, 1, 200, 4, 1, 1, 2>, Tail::kPlain>(),
    instance<WgmmaTile<2, 1, 104, 7>, Tail::kPlain>(),
    instance<WgmmaTile<2, 1, 104, 7, 1, 2>, Tail::kPlain>(),
    instance<WgmmaTile<2, 1, 136, 6>, Tail::kPlain>(),
    instance<WgmmaTile<2, 1, 136, 6, 1, 2>, Tail::kPlain>(),
    instance<WgmmaTile<2, 1, 64, 8, 1, 2>, Tail::kPlain>(),
    instance<WgmmaTile<2, 1, 64, 8, 1, 4>, Tail::kPlain>(),
    instance<WgmmaTile<2, 1, 128, 6, 1, 1, 2>, Tail::kPlain>(),
    instance<WgmmaTile<2, 1, 192, 5, 1, 1, 3>, Tail::kPlain>(),
    instance<WgmmaTile<2, 1, 256, 4, 1, 1, 2>, Tail::kPlain>(),
    instance<WgmmaTile<3, 1, 112, 5>, Tail::kPlain>(),
    instance<WgmmaTile<3, 1, 128, 5>, Tail::kPlain>(),
    instance<WgmmaTile<3, 1, 160, 4>, Tail::kPlain>(),
    instance<WgmmaTile<2, 2, 112, 4>, Tail::kPlain>(),
    instance<WgmmaTile<2, 2, 200, 3, 1, 2>, Tail::kPlain>(),
};

}  // namespace

std::span<const TileInstance> plain_tiles() { return kTiles; }

}  // namespace tendon::gpu::hopper
