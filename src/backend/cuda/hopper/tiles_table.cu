// Tiles of products that bias and the rows of a table are added to (tile.cuh has the kernel).
#include "backend/cuda/hopper/instance.cuh"

namespace tendon::gpu::hopper {
namespace {

// Warpgroups, blocks of 64 weight rows of each, tokens, stages, cluster: weights, tokens.
const TileInstance kTiles[] = {
    instance<WgmmaTile<2, 1, 64, 8, 1, 4>, Tail::kTable>(), instance<WgmmaTile<2, 1, 64, 8, 1, 2>, Tail::kTable>(),
    instance<WgmmaTile<2, 1, 104, 7>, Tail::kTable>(),      instance<WgmmaTile<2, 1, 136, 6, 1, 2>, Tail::kTable>(),
    instance<WgmmaTile<3, 1, 112, 5>, Tail::kTable>(),
};

}  // namespace

std::span<const TileInstance> table_tiles() { return kTiles; }

}  // namespace tendon::gpu::hopper
