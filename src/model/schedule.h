// The times at which the denoise loop evaluates the network: 1 is noise, 0 is data.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tendon {

enum class TimeRule {
  kOpenpi,   // t ← t + dt in f32, accumulated (openpi, JAX)
  kLerobot,  // t_k = f32(1 + k·dt) in f64 (LeRobot)
};
enum class RopeFrequencies {
  kExact,  // θ_i in f64
  kBf16,   // θ_i rounded to bf16, as PyTorch models cast to bf16 have it
};

struct Schedule {
  std::vector<float> times;  // one per step
  float dt = 0;              // f32(-1 / steps)
};

// steps in 1..1000, else Error(kBadUse).
Schedule make_schedule(int64_t steps, TimeRule rule);

// [sin a_0 … sin a_{W/2-1}, cos a_0 … cos a_{W/2-1}] with a_j = 2π·t / (min_period·(max_period /
// min_period)^(j/(W/2-1))), in f64, rounded to f32. width even.
std::vector<float> time_embedding(float time, int64_t width, double min_period, double max_period);

// Row p: cos and sin of p·θ_i, θ_i = theta^(-2i/D), i < D/2: (positions, D) f32 = [cos | sin].
std::vector<float> rope_table(int64_t positions, int64_t head_dim, double theta, RopeFrequencies frequencies);

}  // namespace tendon
