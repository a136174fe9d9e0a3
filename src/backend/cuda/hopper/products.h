// Products on wgmma, for cards of sm_90.
#pragma once

#include <memory>
#include <string_view>

#include "backend/gemm/desc.h"
#include "backend/gpu/runtime.h"
#include "backend/gpu/special_products.h"

namespace tendon::gpu::hopper {

// out = act(x · wᵀ + bias) + residual, or gelu(x · wᵀ) · (x · upᵀ), all bf16, or x, w and up i8 codes. Null when the
// card is no sm_90, or the driver cannot describe tensors to it. The card is the current one.
std::unique_ptr<SpecialProducts> open_products(Runtime& runtime);

// There is this kernel ("128x64x8/1x4/1") for such operands, epilogue and result. Needs no card.
bool has_tile(const gemm::Desc& desc, std::string_view kernel);

}  // namespace tendon::gpu::hopper
