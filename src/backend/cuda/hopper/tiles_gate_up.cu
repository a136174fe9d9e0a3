// Tiles of GELU(gate) · up (tile.cuh has the kernel).
#include "backend/cuda/hopper/instance.cuh"

namespace tendon::gpu::hopper {
namespace {

// Warpgroups, blocks of 64 weight rows of each, tokens, stages, cluster: weights, tokens.
const TileInstance kTiles[] = {
    instance<WgmmaTile<2, 2, 200, 3>, Tail::kGateUp>(), instance<WgmmaTile<2, 2, 200, 3, 1, 2>, Tail::kGateUp>(),
    instance<WgmmaTile<2, 2, 208, 3>, Tail::kGateUp>(), instance<WgmmaTile<2, 2, 184, 3>, Tail::kGateUp>(),
    instance<WgmmaTile<2, 2, 160, 4>, Tail::kGateUp>(), instance<WgmmaTile<2, 2, 160, 4, 2, 1>, Tail::kGateUp>(),
    instance<WgmmaTile<2, 2, 144, 4>, Tail::kGateUp>(), instance<WgmmaTile<2, 2, 144, 4, 1, 2>, Tail::kGateUp>(),
    instance<WgmmaTile<2, 2, 136, 4>, Tail::kGateUp>(), instance<WgmmaTile<2, 2, 136, 4, 1, 2>, Tail::kGateUp>(),
};

}  // namespace

std::span<const TileInstance> gate_up_tiles() { return kTiles; }

}  // namespace tendon::gpu::hopper
