// The tensor-core tiles of products and of attention, as the card's matrix units want them: one signature each.
#pragma once

#include "backend/gpu/device/prelude.cuh"

#if TENDON_WAVE_LANES == 64
#include "backend/gpu/attention_mfma.cuh"
#include "backend/gpu/gemm_tile_mfma.cuh"
#else
#include "backend/gpu/attention_mma.cuh"
#include "backend/gpu/gemm_tile.cuh"
#endif
