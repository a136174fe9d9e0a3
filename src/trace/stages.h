// Finds the stages of a π0 call (vision, prefix, denoise steps) in what a trace shows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/work.h"

namespace tendon::trace {

enum class Stage : uint8_t { kVision, kPrefix, kDenoise, kOther, kUnknown };
inline constexpr int kStages = 5;
std::string_view stage_name(Stage stage);

// How many times each layer occurs in a call.
struct LayerCounts {
  int64_t vision = 27, prefix = 18;  // the expert has as many as the prefix
};

struct Stages {
  std::vector<Stage> of_piece;        // of Work::pieces
  std::vector<int32_t> step;          // of pieces of the denoise stage, from 0; else -1
  int64_t calls = 0;                  // whole calls found
  int64_t steps = 0;                  // of one call; 0 when calls differ
  std::vector<std::string> evidence;  // what the stages were told from, or why they are unknown
};

// Our own traces say the stage of everything. In others, the layers are counted: kernels or operators that occur once a
// layer (an MLP product of known shape, the attention, the softmax) must come as a multiple of 27, then 18 (or 17, when
// the last prefix layer makes keys and values only), then a multiple of 18. Layers begin and end where the names of
// neighbouring layers begin and cease to agree; what stands between two stages counts to the first. All is unknown when
// no such order is found.
Stages find_stages(const Trace& trace, const Work& work, const LayerCounts& layers = {});

}  // namespace tendon::trace
