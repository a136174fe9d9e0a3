// The same tiles as those of codes with GELU and GELU(gate) · up, with codes of static scales as results.
#include "backend/cuda/hopper/tails_of_codes.cuh"

namespace tendon::gpu::hopper {

std::span<const TileInstance> gelu_i8_to_codes_tiles() { return kI8Gelu<int8_t>; }
std::span<const TileInstance> gate_up_i8_to_codes_tiles() { return kI8GateUp<int8_t>; }
std::span<const TileInstance> gate_up_e4m3_to_codes_tiles() { return kE4m3GateUp<E4m3>; }

}  // namespace tendon::gpu::hopper
