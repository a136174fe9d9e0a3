// Tiles of products of e4m3 codes: with bias and residual, with rotation, and GELU(gate) · up (tile.cuh has the
// kernel).
#include "backend/cuda/hopper/instance.cuh"

namespace tendon::gpu::hopper {
namespace {

template <int kBlocks, int kTokens, int kStages, int kClusterWeights = 1, int kClusterTokens = 1, int kParts = 1>
using E4m3Tile = WgmmaTile<2, kBlocks, kTokens, kStages, kClusterWeights, kClusterTokens, kParts, E4m3>;

// Blocks of 64 weight rows of each warpgroup, tokens, stages, cluster: weights, tokens; parts of K.
const TileInstance kPlain[] = {
    instance<E4m3Tile<1, 200, 4, 1, 1, 2>, Tail::kPlain>(), instance<E4m3Tile<1, 192, 5, 1, 1, 3>, Tail::kPlain>(),
    instance<E4m3Tile<1, 112, 6, 1, 2>, Tail::kPlain>(),    instance<E4m3Tile<1, 144, 5, 1, 2>, Tail::kPlain>(),
    instance<E4m3Tile<1, 64, 8, 1, 2>, Tail::kPlain>(),
};
const TileInstance kGateUp[] = {
    instance<E4m3Tile<2, 208, 3>, Tail::kGateUp>(),
    instance<E4m3Tile<2, 160, 4>, Tail::kGateUp>(),
    instance<E4m3Tile<2, 160, 4, 2>, Tail::kGateUp>(),
};
const TileInstance kRope[] = {
    instance<E4m3Tile<1, 144, 5, 1, 2>, Tail::kRope>(),
    instance<E4m3Tile<1, 112, 6, 1, 2>, Tail::kRope>(),
    instance<E4m3Tile<1, 64, 8, 1, 2>, Tail::kRope>(),
};

}  // namespace

std::span<const TileInstance> plain_e4m3_tiles() { return kPlain; }
std::span<const TileInstance> gate_up_e4m3_tiles() { return kGateUp; }
std::span<const TileInstance> rope_e4m3_tiles() { return kRope; }

}  // namespace tendon::gpu::hopper
