// A product of the tuner on a card.
#pragma once

#include <memory>

#include "backend/gemm/tuner.h"
#include "backend/gpu/products.h"

namespace tendon::gpu {

// Throws Error(kDevice) when its matrices do not fit.
std::unique_ptr<gemm::Trial> make_product_trial(const gemm::Desc& desc, Runtime& runtime, const Products& products);

}  // namespace tendon::gpu
