// Tiles of products of i8 codes with bias and GELU, and of GELU(gate) · up.
#include "backend/cuda/hopper/tails_of_codes.cuh"

namespace tendon::gpu::hopper {

std::span<const TileInstance> gelu_i8_tiles() { return kI8Gelu<Bf16>; }
std::span<const TileInstance> gate_up_i8_tiles() { return kI8GateUp<Bf16>; }

}  // namespace tendon::gpu::hopper
