// Tiles of products of codes that GELU follows, with results in bf16 or codes (tile.cuh has the kernel).
#pragma once

#include "backend/cuda/hopper/instance.cuh"

namespace tendon::gpu::hopper {

// Warpgroups, blocks of 64 weight rows of each, tokens, stages, cluster: weights, tokens.
template <int kWarpgroups, int kBlocks, int kTokens, int kStages, int kClusterWeights = 1, int kClusterTokens = 1>
using I8Tile = WgmmaTile<kWarpgroups, kBlocks, kTokens, kStages, kClusterWeights, kClusterTokens, 1, int8_t>;
// Blocks of 64 weight rows of each warpgroup, tokens, stages, cluster: weights, tokens; parts of K.
template <int kBlocks, int kTokens, int kStages, int kClusterWeights = 1, int kClusterTokens = 1, int kParts = 1>
using E4m3Tile = WgmmaTile<2, kBlocks, kTokens, kStages, kClusterWeights, kClusterTokens, kParts, E4m3>;

template <class Result>
inline constexpr TileInstance kI8Gelu[] = {
    instance<I8Tile<3, 1, 160, 4>, Tail::kGelu, Result>(),
    instance<I8Tile<2, 2, 112, 4>, Tail::kGelu, Result>(),
};
template <class Result>
inline constexpr TileInstance kI8GateUp[] = {
    instance<I8Tile<2, 2, 208, 3>, Tail::kGateUp, Result>(),
    instance<I8Tile<2, 2, 208, 3, 1, 2>, Tail::kGateUp, Result>(),
    instance<I8Tile<2, 2, 160, 4>, Tail::kGateUp, Result>(),
    instance<I8Tile<2, 2, 160, 4, 2, 1>, Tail::kGateUp, Result>(),
    instance<I8Tile<2, 2, 144, 4>, Tail::kGateUp, Result>(),
};
template <class Result>
inline constexpr TileInstance kE4m3GateUp[] = {
    instance<E4m3Tile<2, 208, 3>, Tail::kGateUp, Result>(),
    instance<E4m3Tile<2, 160, 4>, Tail::kGateUp, Result>(),
    instance<E4m3Tile<2, 160, 4, 2>, Tail::kGateUp, Result>(),
    instance<E4m3Tile<2, 144, 4>, Tail::kGateUp, Result>(),
};

}  // namespace tendon::gpu::hopper
