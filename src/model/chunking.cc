// Real-time chunking: the first rows of a chunk continue the previous one. Times run from 1 (noise) to 0 (data).
#include <algorithm>

#include "model/forward.h"

namespace tendon {
namespace {

// The factor of the guidance at time t: min(β, (t² + (1-t)²) / (t·(1-t))), β at the ends. Black et al., arXiv
// 2506.07339, eq. 4, with r² for a data variance of 1.
float guidance_scale(float time, float max_guidance) {
  const double t = static_cast<double>(time);
  if (t <= 0 || t >= 1) return max_guidance;
  return std::min(max_guidance, static_cast<float>((t * t + (1 - t) * (1 - t)) / (t * (1 - t))));
}

}  // namespace

ChunkConstraint::ChunkConstraint(Recorder& r, const ForwardSpec& spec, const Tensor& noise) : r_(r), spec_(spec) {
  if (!spec.chunking) return;
  previous_ = r.input("previous", DType::kF32, noise.shape);  // (B·H, A)
  if (is(ChunkingMode::kGuided)) {
    guidance_ = r.input("guidance", DType::kF32, noise.shape);
    return;
  }
  frozen_ = r.input("frozen", DType::kI32, {noise.rows()});
  if (!is(ChunkingMode::kInpaint)) return;
  path_ = r.temporary(DType::kF32, noise.shape);
  r.add(EulerStep{.x = noise, .v = previous_, .out = path_, .dt = -1.0F});
}

Tensor ChunkConstraint::constrained(const Tensor& x, int64_t step) const {
  // At time 1 the path is at the noise, and so is x.
  if (!frozen_.defined() || (is(ChunkingMode::kInpaint) && step == 0)) return x;
  Tensor given = previous_;
  if (is(ChunkingMode::kInpaint)) {
    given = r_.temporary(DType::kF32, x.shape);
    r_.add(EulerStep{.x = previous_, .v = path_, .out = given, .dt = spec_.schedule.times[static_cast<size_t>(step)]});
  }
  const Tensor both = r_.temporary(DType::kF32, x.shape);
  r_.add(SelectRows{.x = x, .y = given, .chosen = frozen_, .out = both});
  return both;
}

Tensor ChunkConstraint::guided(const Tensor& x, const Tensor& velocity, int64_t step) const {
  if (!guidance_.defined()) return velocity;
  const float time = spec_.schedule.times[static_cast<size_t>(step)];
  const Tensor out = r_.temporary(DType::kF32, velocity.shape);
  r_.add(Guidance{.x = x,
                  .v = velocity,
                  .target = previous_,
                  .weight = guidance_,
                  .out = out,
                  .time = time,
                  .scale = guidance_scale(time, spec_.chunking->max_guidance)});
  return out;
}

void ChunkConstraint::finish(const Tensor& x, const Tensor& actions) const {
  r_.add(SelectRows{.x = x, .y = previous_, .chosen = frozen_, .out = actions});
}

void ChunkConstraint::describe(DenoiseLoop& loop) const {
  if (!spec_.chunking) return;
  loop.previous = previous_;
  loop.guidance = guidance_;
  loop.frozen = frozen_;
  loop.times = spec_.schedule.times;
  if (!guidance_.defined()) return;
  for (const float time : loop.times)
    loop.guidance_scales.push_back(guidance_scale(time, spec_.chunking->max_guidance));
}

}  // namespace tendon
