// The operation denoise_loop on the persistent kernels: when they fit, and what is made ready for it.
#include "backend/cuda/denoise/operation.h"

#include <algorithm>
#include <numbers>

#include "backend/cuda/denoise/layout.h"
#include "backend/cuda/denoise/loop.h"
#include "backend/cuda/denoise_wide/layout.h"
#include "backend/cuda/denoise_wide/loop.h"
#include "backend/gpu/aligned_rows.h"

namespace tendon::gpu::denoise {
namespace {

bool is_matrix(const Tensor& t, int64_t rows, int64_t cols) {
  return t.defined() && t.data != nullptr && t.value < 0 && t.dtype == DType::kBf16 && t.rows() == rows &&
         t.cols() == cols && t.row_stride % 2 == 0;
}
bool is_vector(const Tensor& t, int64_t elements) {
  return t.defined() && t.data != nullptr && t.value < 0 && t.dtype == DType::kF32 && t.elements() == elements &&
         t.contiguous() && reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
}

bool fits_layer(const DenoiseLoop::Layer& layer, bool adaptive) {
  return is_matrix(layer.q, kQWidth, kWidth) && is_matrix(layer.k, kHeadDim, kWidth) &&
         is_matrix(layer.v, kHeadDim, kWidth) && is_matrix(layer.o, kWidth, kQWidth) &&
         is_matrix(layer.gate, kMlp, kWidth) && is_matrix(layer.up, kMlp, kWidth) &&
         is_matrix(layer.down, kWidth, kMlp) &&
         (adaptive || (is_vector(layer.input_gain, kWidth) && is_vector(layer.post_gain, kWidth))) &&
         aligned_rows(layer.k_cache) && aligned_rows(layer.v_cache) && layer.k_cache.shape[0] == 1 &&
         layer.k_cache.row_stride == layer.v_cache.row_stride;
}

// What the kernels differ in.
struct Narrow {
  static constexpr const char* kKernel = "cuda.denoise_loop (persistent)";
  static constexpr size_t kKeyBytes = kLayerKvBytes, kExchangeBytes = Exchange::kMemory;
  static constexpr size_t kScales = kLayerScales;  // of a layer, where its weights are codes
  static size_t layer_bytes(bool codes) { return layer_weight_bytes(codes); }
  static bool card() { return fits_card(); }
  static bool fits(int64_t rows, int64_t cached) { return rows <= kMaxRows && cached <= kMaxCachedKeys; }
  // What the packed weights are shared by: plans of another kernel have another order.
  static const void* name_of_weights(const DenoiseLoop& a) { return a.layers[0].q.data; }
  // With scales: as codes.
  static void pack(const LayerWeights& weights, unsigned char* packed, float* scales, Stream stream) {
    if (scales != nullptr) {
      launch_pack_codes(weights, packed, scales, stream);
    } else {
      launch_pack_weights(weights, packed, stream);
    }
  }
  static constexpr size_t kMlpOutBytes = 0;  // taken as it is
  static void pack_keys(const Caches& caches, const LoopArgs& args, unsigned char* keys, Stream stream) {
    launch_pack_keys(caches, args.layers, args.cached_keys, keys, args.exchange, stream);
  }
  template <Rule kRule>
  static void loop(const LoopArgs& args, const Previous<kRule>& previous, bool pi05, Stream stream) {
    launch_loop(args, previous, pi05, stream);
  }
};
struct Wide {
  static constexpr const char* kKernel = "cuda.denoise_loop (persistent, up to 56 rows)";
  static constexpr size_t kKeyBytes = wide::kLayerKvBytes, kExchangeBytes = wide::Exchange::kMemory;
  static constexpr size_t kScales = 0;  // it does not know codes
  static size_t layer_bytes(bool) { return wide::kLayerWeightBytes; }
  static bool card() { return wide::fits_card(); }
  static bool fits(int64_t rows, int64_t cached) {
    return rows <= wide::kRows && cached <= wide::kParts * wide::kPartKeys &&
           wide::keys_fit(static_cast<int>(cached), static_cast<int>(rows));
  }
  static const void* name_of_weights(const DenoiseLoop& a) { return a.layers[0].o.data; }
  static void pack(const LayerWeights& weights, unsigned char* packed, float*, Stream stream) {
    wide::launch_pack_weights(weights, packed, stream);
  }
  static constexpr size_t kMlpOutBytes = size_t{kWidth} * kWidth * sizeof(float);  // transposed
  static void pack_keys(const Caches& caches, const LoopArgs& args, unsigned char* keys, Stream stream) {
    wide::launch_pack_keys(caches, args.layers, args.cached_keys, keys, args.exchange, stream);
  }
  template <Rule kRule>
  static void loop(const LoopArgs& args, const Previous<kRule>& previous, bool pi05, Stream stream) {
    wide::launch_loop(args, previous, pi05, stream);
  }
};

int64_t rows_of(const DenoiseLoop& a) { return a.positions.elements(); }
int64_t cache_keys(const DenoiseLoop& a) { return a.layers[0].k_cache.shape[1] - rows_of(a); }

// Whether the kernels know how the previous chunk is continued.
bool can_continue(const DenoiseLoop& a) {
  if (!a.previous.defined()) return true;
  const auto is_like_noise = [&](const Tensor& t) { return t.contiguous() && t.elements() == a.noise.elements(); };
  return std::ssize(a.times) == a.steps && a.steps <= Previous<Rule::kGuided>::kMaxSteps && is_like_noise(a.previous) &&
         (a.frozen.defined() || is_like_noise(a.guidance));
}

template <Rule kRule>
Previous<kRule> previous_of(const DenoiseLoop& a) {
  Previous<kRule> previous;
  previous.actions = a.previous.as<const float>();
  if constexpr (kRule == Rule::kGuided) {
    previous.guidance = a.guidance.as<const float>();
    std::ranges::copy(a.guidance_scales, previous.scales);
  } else {
    previous.frozen = a.frozen.as<const int32_t>();
  }
  std::ranges::copy(a.times, previous.times);
  return previous;
}

template <class Kernel>
bool can(const Op& op) {
  const auto& a = std::get<DenoiseLoop>(op.args);
  const auto layers = std::ssize(a.layers);
  const bool adaptive = a.modulation.defined();
  const int64_t leading = rows_of(a) - a.noise.rows();
  static const bool card = Kernel::card();
  return card && layers >= 1 && layers <= kMaxLayers && a.key_len.elements() == 1 && a.noise.rows() >= 1 &&
         a.noise.cols() == kActionDim && leading == (adaptive ? 0 : 1) &&
         leading == (a.state_token.defined() ? 1 : 0) && a.mlp_out.defined() == !adaptive &&
         Kernel::fits(rows_of(a), cache_keys(a)) && can_continue(a) && is_vector(a.rope, a.rope.elements()) &&
         a.rope.cols() == kHeadDim && is_vector(a.action_in, kWidth * kActionDim) && a.action_in_bias.contiguous() &&
         is_vector(a.action_out, kWidth * kActionDim) && is_vector(a.action_out_bias, kActionDim) &&
         (adaptive ? is_vector(a.modulation, a.steps * (2 * layers + 1) * 3 * kWidth)
                   : is_vector(a.mlp_out, kWidth * kWidth) && is_vector(a.mlp_out_bias, kWidth) &&
                         is_vector(a.final_gain, kWidth)) &&
         std::ranges::all_of(a.layers, [&](const auto& layer) { return fits_layer(layer, adaptive); });
}

template <class Kernel>
size_t keys_bytes(const DenoiseLoop& a) {
  return a.layers.size() * Kernel::kKeyBytes;
}
template <class Kernel>
size_t workspace_bytes(const Op& op) {
  return keys_bytes<Kernel>(std::get<DenoiseLoop>(op.args)) + Kernel::kExchangeBytes;
}

// What is made once of the weights, in one block of memory: packed weights, scales of those that are codes, gains, for
// π0 mlp_out in the kernel's order, for π0.5 the shifts' products.
struct Made {
  size_t scales, gains, mlp_out, qkv_shift, gate_up_shift, bytes;
};
template <class Kernel>
bool takes_codes(const DenoiseLoop& a) {
  return Kernel::kScales > 0 && a.weights_are_codes;
}
template <class Kernel>
Made layout_of(const DenoiseLoop& a) {
  const size_t layers = a.layers.size();
  const bool adaptive = a.modulation.defined();
  const size_t sets = adaptive ? static_cast<size_t>(a.steps) : 1;
  Made made{};
  made.scales = layers * Kernel::layer_bytes(a.weights_are_codes);
  made.gains = made.scales + (takes_codes<Kernel>(a) ? layers * Kernel::kScales * sizeof(float) : 0);
  made.mlp_out = made.gains + sets * (2 * layers + 1) * kWidth * sizeof(float);
  made.qkv_shift = made.mlp_out + (adaptive ? 0 : Kernel::kMlpOutBytes);
  made.gate_up_shift = made.qkv_shift + (adaptive ? sets * layers * kQkvWidth * sizeof(float) : 0);
  made.bytes = made.gate_up_shift + (adaptive ? sets * layers * 2 * kMlp * sizeof(float) : 0);
  return made;
}

Rows rows(const Tensor& t) { return {static_cast<const uint16_t*>(t.data), t.row_stride}; }

template <class Kernel>
void make(const DenoiseLoop& a, unsigned char* memory, Stream stream) {
  const Made at = layout_of<Kernel>(a);
  const auto layers = static_cast<int>(a.layers.size());
  auto* const gains = reinterpret_cast<float*>(memory + at.gains);
  for (int i = 0; i < layers; ++i) {
    const DenoiseLoop::Layer& w = a.layers[static_cast<size_t>(i)];
    const LayerWeights weights{rows(w.q), rows(w.k), rows(w.v), rows(w.o), rows(w.gate), rows(w.up), rows(w.down)};
    unsigned char* const packed = memory + static_cast<size_t>(i) * Kernel::layer_bytes(a.weights_are_codes);
    auto* const scales = reinterpret_cast<float*>(memory + at.scales) + static_cast<size_t>(i) * Kernel::kScales;
    Kernel::pack(weights, packed, takes_codes<Kernel>(a) ? scales : nullptr, stream);
    if (!a.modulation.defined()) {
      launch_pack_gains(w.input_gain.as<float>(), kWidth, 1, gains + 2 * i * kWidth, stream);
      launch_pack_gains(w.post_gain.as<float>(), kWidth, 1, gains + (2 * i + 1) * kWidth, stream);
    }
  }
  if (!a.modulation.defined()) {
    launch_pack_gains(a.final_gain.as<float>(), kWidth, 1, gains + 2 * layers * kWidth, stream);
    if constexpr (Kernel::kMlpOutBytes > 0) {
      wide::launch_transpose(a.mlp_out.as<float>(), kWidth, kWidth, reinterpret_cast<float*>(memory + at.mlp_out),
                             stream);
    }
    return;
  }
  // Rows of the table: per step 2 · layers + 1 norms of scale | shift | gate.
  const int64_t step_stride = int64_t{2 * layers + 1} * 3 * kWidth;
  const auto* const table = a.modulation.as<float>();
  const auto steps = static_cast<int>(a.steps);
  launch_pack_gains(table, 3 * kWidth, steps * (2 * layers + 1), gains, stream);
  auto* const qkv = reinterpret_cast<float*>(memory + at.qkv_shift);
  auto* const gate_up = reinterpret_cast<float*>(memory + at.gate_up_shift);
  for (int i = 0; i < layers; ++i) {
    const DenoiseLoop::Layer& w = a.layers[static_cast<size_t>(i)];
    const float* const shift = table + int64_t{2 * i} * 3 * kWidth + kWidth;
    launch_shift_products(shift, step_stride, steps, {rows(w.q), rows(w.k), rows(w.v)}, {kQWidth, kHeadDim, kHeadDim},
                          qkv + int64_t{i} * kQkvWidth, int64_t{layers} * kQkvWidth, stream);
    launch_shift_products(shift + 3 * kWidth, step_stride, steps, {rows(w.gate), rows(w.up)}, {kMlp, kMlp},
                          gate_up + int64_t{i} * 2 * kMlp, int64_t{layers} * 2 * kMlp, stream);
  }
}

template <class Kernel>
Launch prepare(const Op& op, const GpuContext& context) {
  const auto& a = std::get<DenoiseLoop>(op.args);
  const Made at = layout_of<Kernel>(a);
  const bool pi05 = a.modulation.defined();
  const auto* const made =
      static_cast<const unsigned char*>(context.share(Kernel::name_of_weights(a), at.bytes, [&](void* memory) {
        make<Kernel>(a, static_cast<unsigned char*>(memory), context.stream);
      }));
  auto* const workspace = static_cast<unsigned char*>(context.workspace);
  const auto layers = static_cast<int>(a.layers.size());

  Caches caches{.stride = a.layers[0].k_cache.row_stride};
  for (size_t i = 0; i < a.layers.size(); ++i) {
    caches.k[i] = static_cast<const uint16_t*>(a.layers[i].k_cache.data);
    caches.v[i] = static_cast<const uint16_t*>(a.layers[i].v_cache.data);
  }
  const auto optional = [](const Tensor& t) { return t.defined() ? t.as<const float>() : nullptr; };
  LoopArgs args;
  args.weights = made;
  if (takes_codes<Kernel>(a)) args.scales = reinterpret_cast<const float*>(made + at.scales);
  args.gains = reinterpret_cast<const float*>(made + at.gains);
  if (pi05) {
    args.qkv_shift = reinterpret_cast<const float*>(made + at.qkv_shift);
    args.gate_up_shift = reinterpret_cast<const float*>(made + at.gate_up_shift);
    args.gain_stride = int64_t{2 * layers + 1} * kWidth;
  }
  args.modulation = optional(a.modulation);
  args.rope = optional(a.rope);
  args.action_in = optional(a.action_in);
  args.action_in_bias = optional(a.action_in_bias);
  args.action_in_bias_stride = a.action_in_bias.elements() > kWidth ? kWidth : 0;
  args.mlp_out =
      Kernel::kMlpOutBytes > 0 && !pi05 ? reinterpret_cast<const float*>(made + at.mlp_out) : optional(a.mlp_out);
  args.mlp_out_bias = optional(a.mlp_out_bias);
  args.action_out = optional(a.action_out);
  args.action_out_bias = optional(a.action_out_bias);
  args.keys = workspace;
  args.noise = optional(a.noise);
  args.state_token = optional(a.state_token);
  args.positions = a.positions.as<const int32_t>();
  args.cached_keys = a.key_len.as<const int32_t>();
  args.actions = static_cast<float*>(a.actions.data);
  args.exchange = workspace + keys_bytes<Kernel>(a);
  args.rows = static_cast<int>(rows_of(a));
  args.horizon = static_cast<int>(a.noise.rows());
  args.layers = layers;
  args.steps = static_cast<int>(a.steps);
  args.eps = a.eps;
  args.dt = a.dt;
  args.score_scale = a.scale * std::numbers::log2e_v<float>;
  const auto launch_with = [&](const auto& previous) -> Launch {
    return [=](Stream stream) {
      Kernel::pack_keys(caches, args, workspace, stream);
      Kernel::loop(args, previous, pi05, stream);
    };
  };
  if (a.guidance.defined()) return launch_with(previous_of<Rule::kGuided>(a));
  if (a.frozen.defined()) return launch_with(previous_of<Rule::kInpaint>(a));
  return launch_with(Previous<Rule::kNone>{});
}

template <class Kernel>
GpuOp row() {
  return {DenoiseLoop::kName, Kernel::kKernel, can<Kernel>, workspace_bytes<Kernel>, prepare<Kernel>};
}

}  // namespace

std::vector<GpuOp> denoise_loop_rows() { return {row<Narrow>(), row<Wide>()}; }

}  // namespace tendon::gpu::denoise
