// The whole denoise loop of a policy as one operation.
#pragma once

#include <memory>
#include <vector>

#include "ops/basic_ops.h"

namespace tendon {

struct Op;

// From the noise to the actions: `steps` times the action expert and the Euler step, after the prefix has left its
// keys and values in the caches. `parts` is what it means, as recorded; the other fields say the same once more for a
// kernel that runs all of it (B samples, H action rows, n = H rows, with π0's state row in front H + 1).
struct DenoiseLoop {
  static constexpr const char* kName = "denoise_loop";
  struct Layer {
    Tensor input_gain, post_gain;       // (W) f32, π0
    Tensor q, k, v, o, gate, up, down;  // matrices
    Tensor k_cache, v_cache;            // (B, C, kv_heads·D); the last n rows are the loop's own
  };
  Tensor noise, actions;               // (B·H, A) f32
  Tensor state_token;                  // (B, W) f32, π0: the row in front, which sees itself and the prefix only
  Tensor positions, key_len;           // (B·n) i32; (B) i32: keys of the prefix
  Tensor rope;                         // (positions, D) f32
  Tensor action_in, action_in_bias;    // (W, A) f32; (steps, W) or (W) f32
  Tensor mlp_out, mlp_out_bias;        // π0: (W, W), (W) f32, behind a SiLU
  Tensor modulation;                   // π0.5: (steps·(2·layers + 1), 3·W) f32, scale | shift | gate
  Tensor final_gain;                   // (W) f32, π0
  Tensor action_out, action_out_bias;  // (A, W), (A) f32
  // Real-time chunking; `previous` is undefined without it. One of the other two: with weights, Guidance of every
  // step's velocity; with rows that are given, those stand on the straight path from noise to `previous` before each
  // step, and on `previous` at the end.
  Tensor previous = {}, guidance = {};                  // (B·H, A) f32
  Tensor frozen = {};                                   // (B·H) i32
  std::vector<float> times = {}, guidance_scales = {};  // of every step; the scales with `guidance`
  std::vector<Layer> layers;
  bool weights_are_codes = false;  // rows of bf16 matrices hold multiples of a number, ±127 times it at most
  std::shared_ptr<const std::vector<Op>> parts;
  int64_t steps = 0;
  float eps = 1e-6F, dt = 0.0F;
  float scale = 1.0F;  // of the scores

  template <class F>
  void tensors(F&& f) {
    f("noise", noise, Access::kRead), f("state_token", state_token, Access::kRead);
    f("positions", positions, Access::kRead), f("key_len", key_len, Access::kRead);
    f("rope", rope, Access::kRead);
    f("action_in", action_in, Access::kRead), f("action_in_bias", action_in_bias, Access::kRead);
    f("mlp_out", mlp_out, Access::kRead), f("mlp_out_bias", mlp_out_bias, Access::kRead);
    f("modulation", modulation, Access::kRead), f("final_gain", final_gain, Access::kRead);
    f("action_out", action_out, Access::kRead), f("action_out_bias", action_out_bias, Access::kRead);
    f("previous", previous, Access::kRead), f("guidance", guidance, Access::kRead);
    f("frozen", frozen, Access::kRead);
    for (Layer& layer : layers) {
      f("input_gain", layer.input_gain, Access::kRead), f("post_gain", layer.post_gain, Access::kRead);
      f("q", layer.q, Access::kRead), f("k", layer.k, Access::kRead), f("v", layer.v, Access::kRead);
      f("o", layer.o, Access::kRead), f("gate", layer.gate, Access::kRead), f("up", layer.up, Access::kRead);
      f("down", layer.down, Access::kRead);
      f("k_cache", layer.k_cache, Access::kReadWrite), f("v_cache", layer.v_cache, Access::kReadWrite);
    }
    f("actions", actions, Access::kWrite);
  }
};

}  // namespace tendon
