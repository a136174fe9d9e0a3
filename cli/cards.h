// What vendors state of their cards (tuning/cards.csv), and what was measured on some of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"

namespace tendon::cli {

struct CardData {
  std::string name;     // "MI300X"
  std::string device;   // as its driver names it
  DeviceLimits stated;  // dense bf16 with sums in f32, and memory, by the vendor's sheet
  double memory_gb = 0;
  std::string note;
  std::string source;     // the vendor's document
  std::string checked;    // "vendor": read there; "quoted": others quote it; "derived": worked out from what it states
  DeviceLimits measured;  // zeros: by nobody here
};

const std::vector<CardData>& known_cards();

// By short name, in any case. Throws Error(kBadUse) that lists all.
const CardData& find_card(std::string_view name);

// The best product rate that is known of a device with this name, in TFLOP/s: measured, else stated; 0: unknown.
double peak_tflops(std::string_view device);

// The limits that can be hoped for: those measured or, where nobody measured, the stated ones times the share that the
// best measured card (the H100) attained of its own.
DeviceLimits attainable(const CardData& card);

}  // namespace tendon::cli
