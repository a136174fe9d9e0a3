// The forwards of π0 and π0.5 as plain functions over a Recorder: one line is one operation. They are recorded once
// per bucket; everything that varies from call to call is an input buffer.
#pragma once

#include <optional>

#include "model/schedule.h"
#include "model/weights/folds.h"
#include "model/weights/static_scales.h"
#include "model/weights/tables.h"
#include "model/weights/weights.h"
#include "ops/recorder.h"

namespace tendon {

// The sizes that a plan is made for.
struct Bucket {
  int64_t batch = 1;        // B, samples
  int64_t images = 3;       // active camera pictures of all samples together
  int64_t prefix_rows = 0;  // S, prefix rows of each sample; a shorter one is padded
  DType image_dtype = DType::kU8;
  bool chunked = false;  // real-time chunking: the call continues a previous chunk
  auto operator<=>(const Bucket&) const = default;
};

// How the first rows of a chunk are made to continue the previous one (real-time chunking).
enum class ChunkingMode {
  kGuided,   // every step's velocity is pulled towards the previous chunk, by weights per number. Black et al.,
             // arXiv 2506.07339, with the identity in place of the Jacobian of the clean estimate
  kInpaint,  // the frozen rows are put on the straight path from the noise to the previous chunk before each step
  kTrained,  // the frozen rows hold the previous chunk, at time 0; for models that were trained so (arXiv 2512.05964)
};

struct Chunking {
  ChunkingMode mode = ChunkingMode::kGuided;
  float max_guidance = 10.0F;  // β, the largest factor of the guidance
};

struct ForwardSpec {
  const ModelConfig& config;
  const Weights& weights;  // device views
  const Tables& tables;    // device views
  const Folds& folds;
  const Schedule& schedule;
  DType activation = DType::kF32;  // f32 or bf16: residual streams, K/V, operands of the large products
  Bucket bucket;
  bool taps = false;                      // keep intermediate values under the names below
  bool operand_taps = false;              // keep operands (rows, K) under their operand_name
  std::optional<Chunking> chunking = {};  // of a chunked bucket; trained: the tables have a row for time 0 at the end
  Tensor frame_pool = {};  // (rows, 16) u8: where u8 pictures of any size lie (ops/frame.h); undefined: there are none

  bool takes_frames() const { return frame_pool.defined() && bucket.image_dtype == DType::kU8; }

  int64_t steps() const { return static_cast<int64_t>(schedule.times.size()); }

  // n, rows of the suffix in a denoise step: π0's state row in the first step (in all, without state_token_once), then
  // H action rows.
  bool state_in_step(int64_t step) const { return !config.pi05() && (step == 0 || !folds.state_token_once); }
  int64_t suffix_rows(int64_t step) const { return config.horizon + (state_in_step(step) ? 1 : 0); }
  // The first step has rows, positions and cache rows of its own.
  bool first_step_differs() const { return !config.pi05() && folds.state_token_once; }
  // Keys of the suffix, the state's included: cache rows after the prefix.
  int64_t suffix_keys() const { return config.horizon + (config.pi05() ? 0 : 1); }
  int64_t cache_capacity() const { return bucket.prefix_rows + suffix_keys(); }
};

// Inputs (B samples, S prefix rows, n suffix rows, C = cache_capacity(), A action_dim):
//   images (images, size, size, 3) u8 or f32, and with takes_frames()
//     frames (images) i32: the frame in frame_pool to scale in place of the picture, or 0
//   prefix_sources, prefix_positions, prefix_cache_rows (B·S) i32
//   prefix_len (B) i32: keys of the prefix        prefix_mask (B, C) u8, only when pack_valid_tokens is off
//   suffix_len (B) i32: keys before the suffix    suffix_positions, suffix_cache_rows (B·n) i32
//   noise (B·H, A) f32                            π0: state (B, A) f32, and where state and action rows stand in a
//     suffix with both: state_suffix_rows (B), action_suffix_rows (B·H) i32
//     with state_token_once, for the first step: first_positions, first_cache_rows (B·(H + 1)) i32
//   chunking: previous (B·H, A) f32, and guidance (B·H, A) f32, weights 0 to 1, or frozen (B·H) i32, 1 for given rows
// Output: actions (B·H, A) f32.
// Kept: k_cache.<layer>, v_cache.<layer> (B, C, kv_width), and with taps: vision.embed,
//   vision.layer.<i>, image_features, prefix_embeds, prefix.layer.<i>, and for step k suffix_embeds.<k>,
//   expert.layer.<i>.<k>, expert_out.<k> (B·n, W; with state_token_once the action rows), v.<k>, x.<k> (x after it).
void record_policy(Recorder& r, const ForwardSpec& spec);

// Where an operation leaves the operand (rows, K) of a product with w: with factors, codes of w's type.
Tensor operand_buffer(Recorder& r, DType activation, int64_t rows, const Tensor& w, const Tensor& factors);
// Attention that leaves its result there; `attention.out` is undefined, samples (B, T) of rows.
void record_attention(Recorder& r, const Attention& attention, const Tensor& factors, const Tensor& operand);

// Parts of it, one file each.
// images → (images·T, prefix width)
Tensor record_vision(Recorder& r, const ForwardSpec& spec, const Tensor& images);

// What a Gemma layer needs besides its weights.
struct GemmaContext {
  Tensor positions, cache_rows;  // (rows) i32
  Tensor key_len, key_mask;      // (B) i32, (B, C) u8 or undefined
  int32_t extra_keys = 0, leading_block = 0;
  std::vector<Tensor> k_cache, v_cache;  // per layer (B, C, kv_width)
  bool keeps_operands = false;           // with spec.operand_taps, as the prefix's
};
struct Modulation {
  Tensor scale, shift, gate;  // (W) f32 each; undefined for plain norms
  // Rows that are `frozen` (rows) i32 have these instead; undefined when no row has.
  Tensor frozen = {}, frozen_scale = {}, frozen_shift = {}, frozen_gate = {};
};
// adaRMS of x (B·rows, width).
Tensor record_modulated_norm(Recorder& r, const Tensor& x, const Modulation& modulation, float eps);
// One transformer block on x (B·rows, width); stops after the keys and values when `kv_only`.
Tensor record_gemma_layer(Recorder& r, const ForwardSpec& spec, const GemmaLayerWeights& layer, const Tensor& x,
                          const GemmaContext& context, int64_t index, const Modulation& attention_mod,
                          const Modulation& mlp_mod, bool kv_only);

// The operations of real-time chunking around the denoise steps; without spec.chunking it records nothing.
class ChunkConstraint {
 public:
  // Declares the inputs. noise (B·H, A).
  ChunkConstraint(Recorder& r, const ForwardSpec& spec, const Tensor& noise);

  // The rows that are given, where the model sees them at time 0; else undefined.
  Tensor rows_at_time_0() const { return is(ChunkingMode::kTrained) ? frozen_ : Tensor{}; }
  // x_t with its given rows, before a step.
  Tensor constrained(const Tensor& x, int64_t step) const;
  // The velocity that the step takes.
  Tensor guided(const Tensor& x, const Tensor& velocity, int64_t step) const;
  // Whether `finish` has rows to set after the last step.
  bool sets_rows() const { return frozen_.defined(); }
  void finish(const Tensor& x, const Tensor& actions) const;
  // What the loop as one operation has to know of it.
  void describe(DenoiseLoop& loop) const;

 private:
  bool is(ChunkingMode mode) const { return spec_.chunking && spec_.chunking->mode == mode; }

  Recorder& r_;
  const ForwardSpec& spec_;
  Tensor previous_, guidance_, frozen_;  // inputs
  Tensor path_;                          // noise - previous: the velocity of the straight path between them
};

}  // namespace tendon
