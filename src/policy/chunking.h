// Real-time chunking on the robot's side: what is left of the previous chunk, and how much of it counts.
// Source: Black et al., arXiv 2506.07339 (weights); the keys are those of openpi forks (docs/serving.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tendon {

// How the weight of a row falls between the delay and the end of the overlap.
enum class GuidanceSchedule { kExp, kLinear, kOnes, kZeros };

inline constexpr std::string_view kGuidanceScheduleNames[] = {"exp", "linear", "ones", "zeros"};

struct ChunkingRules {
  GuidanceSchedule schedule = GuidanceSchedule::kExp;
  std::optional<int64_t> max_delay;  // longer ones are refused: what a trained model has seen
};

// The previous chunk, as a client has it.
struct PreviousActions {
  std::vector<double> actions;  // (rows, action_width) in the robot's units, as a reply gave them
  int64_t rows = 0;
  int64_t start = 0;  // s: rows executed before this call's observation
  int64_t delay = 0;  // d: rows that will be executed before this call's answer is there
};

// What a reply tells about it: rows start .. start + overlap of the previous chunk stood beside the first `overlap`
// rows of the new one, and the first `delay` were taken as given.
struct ChunkOverlap {
  int64_t start = 0, delay = 0, overlap = 0;
};

// Weight of each of `horizon` rows: 1 below `delay`; 0 from `overlap` on; between them, with c = (overlap - i) /
// (overlap - delay + 1), c (linear), c·(e^c - 1)/(e - 1) (exp), 1 (ones) or 0 (zeros). delay ≤ overlap ≤ horizon.
std::vector<double> guidance_weights(GuidanceSchedule schedule, int64_t delay, int64_t overlap, int64_t horizon);

// What stands beside the new chunk. Throws Error(kBadInput) naming what is wrong: no or too many rows, rows of another
// width, a number that is not finite, a start behind the last row, a delay that is negative, longer than what is left,
// or over the rules' limit.
ChunkOverlap check_previous(const PreviousActions& previous, int64_t action_width, int64_t horizon,
                            const ChunkingRules& rules);

// (horizon, action_width): row i is previous row start + i, then its last row again and again.
std::vector<double> aligned_rows(const PreviousActions& previous, int64_t action_width, int64_t horizon);

}  // namespace tendon
