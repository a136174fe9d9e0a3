// What stands around the layers in every step of the persistent denoise kernel for many rows: from x_t to the first
// layer's input, and from the last layer's output to x_{t+1}. All of it in f32.
#pragma once

#include "backend/cuda/denoise/given.cuh"
#include "backend/cuda/denoise_wide/block.cuh"

namespace tendon::gpu::denoise::wide {

// Shared memory of these stages, where activations stand otherwise.
struct EndsLayout {
  static constexpr uint32_t kX = 0;                                      // x_t of the block's rows, (7, 32)
  static constexpr uint32_t kHidden = kX + kGroupRows * kActionDim * 4;  // (7, 1024)
  static constexpr uint32_t kSums = kHidden + kGroupRows * kWidth * 4;   // (4 quarters of the depth, 7, 64)
  static constexpr uint32_t kBytes = kSums + 4 * kGroupRows * kTileColumns * 4;
  static_assert(kHidden % 16 == 0 && kSums % 16 == 0 && kBytes <= 2 * kPieceBytes);
};

// act(x_t · wᵀ + bias) for the block's rows and columns: thread k has column k % 64 of rows k / 64 and k / 64 + 4.
TENDON_DEVICE void action_in(const Block& t, int step, const unsigned char* x_t, bool with_silu, float (&out)[2]) {
  const int leading = t.args.rows - t.args.horizon;
  const int first = t.block % kRowGroups * kGroupRows - leading;  // action row of the block's first row
  const uint32_t x_at = t.activations() + EndsLayout::kX;
  if (t.thread < kGroupRows * kActionDim) {
    const int row = first + (t.thread >> 5);
    uint32_t x = 0;
    if (row >= 0 && row < t.args.horizon) {
      const int at = row * kActionDim + t.lane;
      if (step == 0) {  // the noise holds whatever the caller gave
        x = __float_as_uint(load_constant(t.args.noise + at));
      } else {
        Patience patience;
        while ((x = load_relaxed_4(x_t + at * 4)) == kEmpty) patience.lose();
      }
    }
    store_shared_float(x_at + t.thread * 4, __uint_as_float(x));
  }
  const int column = t.tile() * kTileColumns + (t.thread & 63);
  const float bias = load_constant(t.args.action_in_bias + step * t.args.action_in_bias_stride + column);
  float4 weights[kActionDim / 4];
#pragma unroll
  for (int k = 0; k < kActionDim / 4; ++k) weights[k] = load_constant_4(t.args.action_in + column * kActionDim + 4 * k);
  compute_sync();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = min((t.thread >> 6) + 4 * i, kGroupRows - 1);
    float sum = bias;
#pragma unroll
    for (int k = 0; k < kActionDim / 4; ++k) {
      const uint4 x = load_shared_16(x_at + (row * kActionDim + 4 * k) * 4);
      sum += __uint_as_float(x.x) * weights[k].x + __uint_as_float(x.y) * weights[k].y +
             __uint_as_float(x.z) * weights[k].z + __uint_as_float(x.w) * weights[k].w;
    }
    out[i] = with_silu ? silu(sum) : sum;
  }
}

// hidden · mlp_outᵀ for the block's rows and columns (mlp_out transposed), in four quarters of the depth, to kSums.
TENDON_DEVICE void mlp_out(const Block& t, const unsigned char* hidden) {
  const int leading = t.args.rows - t.args.horizon;
  const int first = t.block % kRowGroups * kGroupRows;
  uint4 h[kGroupRows];
  await(
      h, [&](int i) { return hidden + ((first + i) * kWidth + 4 * t.thread) * 4; },
      [&](int i) { return first + i >= leading && first + i < t.args.rows; });
  const uint32_t at = t.activations() + EndsLayout::kHidden;
#pragma unroll
  for (int i = 0; i < kGroupRows; ++i) store_shared_16(at + (i * kWidth + 4 * t.thread) * 4, h[i]);
  compute_sync();
  constexpr int kDepth = kWidth / 4;
  const int quarter = t.thread >> 6;
  const float* const weights =
      t.args.mlp_out + int64_t{quarter} * kDepth * kWidth + t.tile() * kTileColumns + (t.thread & 63);
  float sums[kGroupRows] = {};
#pragma unroll 4
  for (int k = 0; k < kDepth; k += 4) {
    float w[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) w[e] = __ldg(weights + (k + e) * kWidth);
#pragma unroll
    for (int i = 0; i < kGroupRows; ++i) {
      const uint4 x = load_shared_16(at + (i * kWidth + quarter * kDepth + k) * 4);
      sums[i] += __uint_as_float(x.x) * w[0] + __uint_as_float(x.y) * w[1] + __uint_as_float(x.z) * w[2] +
                 __uint_as_float(x.w) * w[3];
    }
  }
#pragma unroll
  for (int i = 0; i < kGroupRows; ++i) {
    store_shared_float(
        t.activations() + EndsLayout::kSums + ((quarter * kGroupRows + i) * kTileColumns + (t.thread & 63)) * 4,
        sums[i]);
  }
}

// x_t → the first layer's input, in every block what it owns; the residual stream starts here, handed on times `gains`
// of the first norm.
template <bool kPi05>
TENDON_DEVICE void token_stage(Block& t, int step, const float* gains, unsigned char* exchange) {
  const int leading = t.args.rows - t.args.horizon;
  const uint32_t sums_at = t.activations() + EndsLayout::kSums;
  float values[2];
  action_in(t, step, exchange + Exchange::kActions, !kPi05, values);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row_of_group = (t.thread >> 6) + 4 * i;
    const int row = t.block % kRowGroups * kGroupRows + row_of_group;
    if (row_of_group >= kGroupRows) continue;
    if constexpr (kPi05) {
      store_shared_float(sums_at + (row_of_group * kTileColumns + (t.thread & 63)) * 4, values[i]);
    } else if (row >= leading && row < t.args.rows) {
      store_relaxed_4(
          exchange + Exchange::kActionHidden + (row * kWidth + t.tile() * kTileColumns + (t.thread & 63)) * 4,
          __float_as_uint(values[i]));
    }
  }
  if constexpr (kMeets && !kPi05) t.next_stage(exchange);
  if constexpr (!kPi05) mlp_out(t, exchange + Exchange::kActionHidden);
  compute_sync();
  if (t.warp() < kGroupRows) {
    const int row = t.own_row();
    const int column = t.tile() * kTileColumns + t.own_column();
    float4 v = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    if (row < leading) {
      v = load_constant_4(t.args.state_token + column);
    } else if (row < t.args.rows) {
      if constexpr (!kPi05) v = load_constant_4(t.args.mlp_out_bias + column);
#pragma unroll
      for (int quarter = 0; quarter < (kPi05 ? 1 : 4); ++quarter) {
        const uint4 s =
            load_shared_16(sums_at + ((quarter * kGroupRows + t.warp()) * kTileColumns + t.own_column()) * 4);
        v.x += __uint_as_float(s.x);
        v.y += __uint_as_float(s.y);
        v.z += __uint_as_float(s.z);
        v.w += __uint_as_float(s.w);
      }
    }
    t.residual[0] = rounded<Bf16>(v.x);
    t.residual[1] = rounded<Bf16>(v.y);
    t.residual[2] = rounded<Bf16>(v.z);
    t.residual[3] = rounded<Bf16>(v.w);
    __syncwarp();
    t.publish(load_constant_4(gains + column), exchange + Exchange::kTokens);
  }
  compute_sync();  // activations may come to where the sums stand
}

// What is left of the final norm, action_out and the Euler step: block b makes action row b; of eight neighbouring
// threads, which share an action, the first carries its x_t through the steps.
template <bool kPi05, Rule kRule>
TENDON_DEVICE void velocity_stage(const Block& t, const Previous<kRule>& previous, const Given<kRule>& given, int step,
                                  const unsigned char* x, float& x_t, unsigned char* exchange) {
  if (t.block >= t.args.horizon) return;
  const int row = t.args.rows - t.args.horizon + t.block;
  const uint32_t x_at = t.activations();  // (1024) bf16, then 16 sums of squares
  constexpr int kUnits = kWidth / 8 + kTiles / 4;
  uint4 v[1];
  await(
      v,
      [&](int) {
        return t.thread < kWidth / 8 ? activation(x, t.thread, row)
                                     : x + Exchange::kSquares + (row * kTiles + (t.thread - kWidth / 8) * 4) * 4;
      },
      [&](int) { return t.thread < kUnits; });
  if (t.thread < kUnits) store_shared_16(x_at + t.thread * kUnitBytes, v[0]);
  compute_sync();
  const int action = t.thread >> 3;
  const int first = (t.thread & 7) * 4;
  const float* const weights = t.args.action_out + action * kWidth + first;
  const float* const shift = kPi05 ? t.args.modulation +
                                         (int64_t{step} * (2 * t.args.layers + 1) + 2 * t.args.layers) * (3 * kWidth) +
                                         kWidth + first
                                   : nullptr;
  float product = 0.0F;
  float constant = 0.0F;
#pragma unroll 8
  for (int k = 0; k < kWidth; k += 32) {
    const float4 w = __ldg(reinterpret_cast<const float4*>(weights + k));
    const uint2 v = load_shared_8(x_at + (first + k) * 2);
    product += low_bf16(v.x) * w.x + high_bf16(v.x) * w.y + low_bf16(v.y) * w.z + high_bf16(v.y) * w.w;
    if constexpr (kPi05) {
      const float4 s = __ldg(reinterpret_cast<const float4*>(shift + k));
      constant += s.x * w.x + s.y * w.y + s.z * w.z + s.w * w.w;
    }
  }
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) squares += load_shared_float(x_at + kWidth * 2 + i * 4);
#pragma unroll
  for (int mask = 1; mask <= 4; mask *= 2) {
    product += shuffle_xor(product, mask);
    if constexpr (kPi05) constant += shuffle_xor(constant, mask);
  }
  if ((t.thread & 7) == 0) {
    const float velocity = product * rsqrtf(squares * (1.0F / kWidth) + t.args.eps) + constant +
                           load_constant(t.args.action_out_bias + action);
    if constexpr (kRule == Rule::kNone) {
      x_t += t.args.dt * velocity;
    } else {
      x_t = given.next(t.args, previous, step, x_t, velocity);
    }
    const int at = t.block * kActionDim + action;
    if (step + 1 == t.args.steps) {
      t.args.actions[at] = x_t;
    } else {
      store_relaxed_4(exchange + Exchange::kActions + at * 4, __float_as_uint(x_t));
    }
  }
  compute_sync();  // what stands in shared memory has been read
}

}  // namespace tendon::gpu::denoise::wide
