// Tiles of products of i8 codes with bias and GELU, and of GELU(gate) · up (tile.cuh has the kernel).
#include "backend/cuda/hopper/instance.cuh"

namespace tendon::gpu::hopper {
namespace {

template <int kWarpgroups, int kBlocks, int kTokens, int kStages, int kClusterWeights = 1, int kClusterTokens = 1>
using I8Tile = WgmmaTile<kWarpgroups, kBlocks, kTokens, kStages, kClusterWeights, kClusterTokens, 1, int8_t>;

// Warpgroups, blocks of 64 weight rows of each, tokens, stages, cluster: weights, tokens.
const TileInstance kGelu[] = {
    instance<I8Tile<3, 1, 160, 4>, Tail::kGelu>(),
    instance<I8Tile<2, 2, 112, 4>, Tail::kGelu>(),
};
const TileInstance kGateUp[] = {
    instance<I8Tile<2, 2, 208, 3>, Tail::kGateUp>(),
    instance<I8Tile<2, 2, 208, 3, 1, 2>, Tail::kGateUp>(),
    instance<I8Tile<2, 2, 160, 4>, Tail::kGateUp>(),
    instance<I8Tile<2, 2, 160, 4, 2, 1>, Tail::kGateUp>(),
};

}  // namespace

std::span<const TileInstance> gelu_i8_tiles() { return kGelu; }
std::span<const TileInstance> gate_up_i8_tiles() { return kGateUp; }

}  // namespace tendon::gpu::hopper
