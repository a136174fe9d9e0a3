// Products on wgmma, for cards of sm_90.
#pragma once

#include <memory>

#include "backend/gpu/runtime.h"
#include "backend/gpu/special_products.h"

namespace tendon::gpu::hopper {

// out = act(x · wᵀ + bias) + residual, or gelu(x · wᵀ) · (x · upᵀ), all bf16, or x, w and up i8 codes. Null when the
// card is no sm_90, or the driver cannot describe tensors to it. The card is the current one.
std::unique_ptr<SpecialProducts> open_products(Runtime& runtime);

}  // namespace tendon::gpu::hopper
