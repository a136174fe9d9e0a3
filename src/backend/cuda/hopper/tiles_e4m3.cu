// Tiles of products of e4m3 codes: with bias and residual, with rotation, and GELU(gate) · up (tile.cuh has the
// kernel).
#include "backend/cuda/hopper/tails_of_codes.cuh"

namespace tendon::gpu::hopper {
namespace {

const TileInstance kPlain[] = {
    instance<E4m3Tile<1, 200, 4, 1, 1, 2>, Tail::kPlain>(), instance<E4m3Tile<1, 192, 5, 1, 1, 3>, Tail::kPlain>(),
    instance<E4m3Tile<1, 112, 6, 1, 2>, Tail::kPlain>(),    instance<E4m3Tile<1, 144, 5, 1, 2>, Tail::kPlain>(),
    instance<E4m3Tile<1, 64, 8, 1, 2>, Tail::kPlain>(),
};
const TileInstance kRope[] = {
    instance<E4m3Tile<1, 144, 5, 1, 2>, Tail::kRope>(),
    instance<E4m3Tile<1, 112, 6, 1, 2>, Tail::kRope>(),
    instance<E4m3Tile<1, 64, 8, 1, 2>, Tail::kRope>(),
};

}  // namespace

std::span<const TileInstance> plain_e4m3_tiles() { return kPlain; }
std::span<const TileInstance> gate_up_e4m3_tiles() { return kE4m3GateUp<Bf16>; }
std::span<const TileInstance> rope_e4m3_tiles() { return kRope; }

}  // namespace tendon::gpu::hopper
