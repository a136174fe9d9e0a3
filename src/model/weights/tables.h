// What depends only on the checkpoint and the schedule, computed once at load.
#pragma once

#include <vector>

#include "model/schedule.h"
#include "model/weights/folds.h"
#include "model/weights/weights.h"

namespace tendon {

// Views of device memory, or undefined where the variant or the folds need none.
struct Tables {
  Tensor rope;            // (positions, D) f32, model/schedule.h
  Tensor time_embedding;  // (N, W) f32; only when time_tables is off
  Tensor action_in;       // π0: (W, A) f32 when action_in is folded, else (W, W): the action half of time_mlp_in
  Tensor action_in_bias;  // π0: (N, W) f32, the bias of that product at every step
  Tensor modulation;      // π0.5: (N·(2·depth + 1), 3·W) f32, rows ordered by step, then norm; scale | shift | gate
};

// The same as host memory.
struct HostTables {
  Shape rope_shape, time_embedding_shape, action_in_shape, action_in_bias_shape, modulation_shape;
  std::vector<float> rope, time_embedding, action_in, action_in_bias, modulation;
};

// `weights` are host views (f32, bf16 or f16); `positions` is the number of rope rows. Products accumulate in f64.
HostTables build_tables(const Weights& weights, const ModelConfig& config, const Folds& folds, const Schedule& schedule,
                        int64_t positions, RopeFrequencies frequencies);

}  // namespace tendon
