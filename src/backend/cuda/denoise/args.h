// What the persistent denoise kernel is given.
#pragma once

#include <cstdint>

namespace tendon::gpu::denoise {

struct LoopArgs {
  // Made once: weights in the kernel's order (layout.h); what each norm multiplies by (1 + gain or scale), kWidth
  // numbers a norm, per step in the order of the layers' input and post-attention norms, then the final one; π0.5: what
  // the shifts of the norms add to each product.
  const unsigned char* weights = nullptr;
  const float* scales = nullptr;  // (layers, kLayerScales) where the weights are codes, else null
  const float* gains = nullptr;
  const float* qkv_shift = nullptr;      // (steps, layers, kQkvWidth)
  const float* gate_up_shift = nullptr;  // (steps, layers, 2 · kMlp)
  const float* modulation = nullptr;     // (steps · (2·layers + 1), 3 · kWidth), π0.5
  const float* rope = nullptr;           // (positions, kHeadDim): cosines | sines
  // Small projections, f32
  const float *action_in = nullptr, *action_in_bias = nullptr;    // (kWidth, 32), (kWidth) a step, or once
  const float *mlp_out = nullptr, *mlp_out_bias = nullptr;        // (kWidth, kWidth), (kWidth), π0
  const float *action_out = nullptr, *action_out_bias = nullptr;  // (32, kWidth), (32)
  // Every call
  const unsigned char* keys = nullptr;   // keys and values in the kernel's order
  const float* noise = nullptr;          // (horizon, 32)
  const float* state_token = nullptr;    // (kWidth), π0
  const int32_t* positions = nullptr;    // (rows)
  const int32_t* cached_keys = nullptr;  // one number
  float* actions = nullptr;              // (horizon, 32)
  unsigned char* exchange = nullptr;     // layout.h; all bits set before the launch

  int rows = 0, horizon = 0;  // rows: horizon, with the state's row in front for π0
  int layers = 0, steps = 0;
  int64_t gain_stride = 0;            // elements from one step's gains to the next; 0 where they do not change
  int64_t action_in_bias_stride = 0;  // the same for action_in_bias
  float eps = 0, dt = 0;
  float score_scale = 0;  // of q·k, times log2(e)
};

// What real-time chunking does to x_t between two steps; see DenoiseLoop.
enum class Rule { kNone, kGuided, kInpaint };
template <Rule kRule>
struct Previous {
  static constexpr int kMaxSteps = 64;
  const float *actions = nullptr, *guidance = nullptr;  // (horizon, 32); kGuided: the second one
  const int32_t* frozen = nullptr;                      // (horizon), kInpaint
  float times[kMaxSteps] = {}, scales[kMaxSteps] = {};  // of each step
};
template <>
struct Previous<Rule::kNone> {};

}  // namespace tendon::gpu::denoise
