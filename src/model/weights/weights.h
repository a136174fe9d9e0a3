// The network's weights as tensor views, and the one list that visits them all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/log.h"
#include "model/config.h"

namespace tendon {

// out = x · wᵀ + bias.
struct LinearWeights {
  Tensor w;     // (out, in)
  Tensor bias;  // (out) f32
};
struct LayerNormWeights {
  Tensor gain, bias;  // (W) f32
};
// RMS norm with a gain, or adaRMS with a modulation layer.
struct NormWeights {
  Tensor gain;               // (W) f32, the w of 1 + w
  LinearWeights modulation;  // (3·W, W): rows scale | shift | gate
};

// What the operands of a layer's products behind attention and GELU are multiplied by when they become codes whose
// scales are known beforehand (static scales), in columns: (K) f32, undefined where rows are scaled as they come.
struct OperandFactors {
  Tensor attended, hidden;
};

struct VisionLayerWeights {
  LayerNormWeights norm1, norm2;
  LinearWeights q, k, v, out, fc1, fc2;
  OperandFactors factors;  // of out and fc2
};
struct VisionWeights {
  LinearWeights patch;  // (W, 3·P·P), channel-major patches
  Tensor positions;     // (T, W) f32
  std::vector<VisionLayerWeights> layers;
  LayerNormWeights post_norm;
  LinearWeights projector;  // (prefix width, W)
};

struct GemmaLayerWeights {
  NormWeights input_norm, post_norm;
  Tensor q, k, v, o, gate, up, down;
  OperandFactors factors;  // of o and down
};
struct GemmaWeights {
  std::vector<GemmaLayerWeights> layers;
  NormWeights final_norm;
  bool rounded_to_i8 = false;  // each row of a matrix holds multiples of its largest magnitude / 127, in bf16
};

struct Weights {
  VisionWeights vision;
  Tensor embedding;  // (vocab, prefix width)
  GemmaWeights prefix, expert;
  LinearWeights action_in, action_out;
  LinearWeights state_in;                   // π0
  LinearWeights time_mlp_in, time_mlp_out;  // π0: action_time_mlp_*, input width 2·W; π0.5: time_mlp_*

  // Where they came from. Tensors without memory are asked of it by name (TensorSource::header); it must live as long.
  const TensorSource* source = nullptr;
};

// How a weight is kept in memory.
enum class WeightRole {
  // In the compute type, operands of the large products; codes for those of CodedProducts alone, else bf16.
  kVisionNormedMatrix,  // behind a norm, which makes its rows' codes: q, k, v, fc1, the projector
  kVisionRestMatrix,    // the tower's others
  kPrefixMatrix,
  kExpertMatrix,
  kEmbeddingMatrix,  // the same, never codes
  kFloat,            // in f32: norms, biases, patch and position embedding, the suffix projections
  kTimeOnly,         // needed to build the time tables, not by the network itself when those are folded
  kDead,             // read by no live operation (rest of the last prefix layer, prefix final norm)
};

constexpr bool is_matrix(WeightRole role) {
  return role == WeightRole::kVisionNormedMatrix || role == WeightRole::kVisionRestMatrix ||
         role == WeightRole::kPrefixMatrix || role == WeightRole::kExpertMatrix || role == WeightRole::kEmbeddingMatrix;
}

// Which products run on codes in a precision that has such. `expert_weights`: the expert's weights alone hold what i8
// codes with a scale for each row can hold (whatever the precision), in bf16, so that a kernel may read them as codes.
struct CodedProducts {
  bool vision_normed = false, vision_rest = false, prefix = true, expert = false, expert_weights = false;
  bool holds(WeightRole role) const {
    switch (role) {
      case WeightRole::kVisionNormedMatrix:
        return vision_normed;
      case WeightRole::kVisionRestMatrix:
        return vision_rest;
      case WeightRole::kExpertMatrix:
        return expert;
      default:
        return prefix && (role == WeightRole::kPrefixMatrix || role == WeightRole::kDead);
    }
  }
};

struct WeightSpec {
  std::string name;  // canonical
  Shape shape;       // as stored
  WeightRole role;
};

// Visits every weight of the configured network once: f(spec, tensor of `weights`). Sizes the layer vectors first.
// The expert's unused lm_head is not among them.
void visit_weights(Weights& weights, const ModelConfig& config,
                   const std::function<void(const WeightSpec&, Tensor&)>& f);

// Names and shapes of the whole stored layout, the expert's lm_head included, sorted by name: what `tendon synth`
// writes (777 tensors for π0, 812 for π0.5).
std::vector<WeightSpec> stored_layout(const ModelConfig& config);

// Host views of all weights; large matrices that the source only makes when asked have no memory yet. Every expected
// tensor must be there once with the right shape, and nothing else. Throws Error(kBadInput) with the counts and the
// first five names of missing, unexpected and wrongly shaped tensors.
Weights load_weights(const TensorSource& source, const ModelConfig& config);

}  // namespace tendon
