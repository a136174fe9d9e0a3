// What a thread that carries a number of x_t through the steps of a persistent denoise kernel keeps of the previous
// chunk beside it.
#pragma once

#include "backend/cuda/denoise/args.h"
#include "backend/cuda/denoise/exchange.cuh"

namespace tendon::gpu::denoise {

template <Rule kRule>
struct Given;

template <>
struct Given<Rule::kNone> {
  TENDON_DEVICE void load(const LoopArgs&, const Previous<Rule::kNone>&, int) {}
};

template <>
struct Given<Rule::kGuided> {
  float target = 0.0F, weight = 0.0F;

  // Of action `at`, an index into (horizon, 32).
  TENDON_DEVICE void load(const LoopArgs&, const Previous<Rule::kGuided>& previous, int at) {
    target = load_constant(previous.actions + at);
    weight = load_constant(previous.guidance + at);
  }
  // x of the next step, or the action.
  TENDON_DEVICE float next(const LoopArgs& args, const Previous<Rule::kGuided>& previous, int step, float x,
                           float velocity) const {
    const float missing = target - (x - previous.times[step] * velocity);
    return x + args.dt * (velocity - previous.scales[step] * (weight * missing));
  }
};

template <>
struct Given<Rule::kInpaint> {
  float noise = 0.0F, target = 0.0F;
  bool frozen = false;

  TENDON_DEVICE void load(const LoopArgs& args, const Previous<Rule::kInpaint>& previous, int at) {
    noise = load_constant(args.noise + at);
    target = load_constant(previous.actions + at);
    frozen = load_constant(previous.frozen + at / kActionDim) != 0;
  }
  TENDON_DEVICE float next(const LoopArgs& args, const Previous<Rule::kInpaint>& previous, int step, float x,
                           float velocity) const {
    if (!frozen) return x + args.dt * velocity;
    return step + 1 == args.steps ? target : target + previous.times[step + 1] * (noise - target);
  }
};

}  // namespace tendon::gpu::denoise
