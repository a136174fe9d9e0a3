// The best rates measured on each kind of card: the one place for these figures.
#pragma once

#include <string_view>

#include "backend/backend.h"

namespace tendon {

struct CardLimits {
  std::string_view name;  // as the CUDA runtime names the card
  DeviceLimits limits;
};

// bf16: the 8192³ product of cuBLAS. Read: the sum over 2 GiB. Both by bench/baselines/ceilings.py.
inline constexpr CardLimits kCardLimits[] = {
    {"NVIDIA H100 80GB HBM3", {.bf16_flops_per_s = 771e12, .read_bytes_per_s = 3.10e12}},
    {"NVIDIA H200", {.bf16_flops_per_s = 778e12, .read_bytes_per_s = 4.43e12}},
};

constexpr DeviceLimits card_limits(std::string_view name) {
  for (const CardLimits& card : kCardLimits) {
    if (card.name == name) return card.limits;
  }
  return {};
}

}  // namespace tendon
