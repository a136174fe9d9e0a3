// What stands around the layers in every step of the persistent denoise kernel: from x_t to the first layer's input,
// and from the last layer's output to x_{t+1}. All of it in f32.
#pragma once

#include "backend/cuda/denoise/block.cuh"
#include "backend/cuda/denoise/given.cuh"

namespace tendon::gpu::denoise {

constexpr int kColumns = kWidth / kBlocks;  // of the expert's width that a block owns

// Products in f32 on tensor cores: each factor as the part that tf32 holds and the rest, without rest times rest.
struct SplitSums {
  float main[4] = {}, rest[4] = {};

  // 16 of the depth: of rows group and group + 8 (x) and of column group (w) a lane has four neighbours, from 4 · quad.
  TENDON_DEVICE void add(const uint4& x_low, const uint4& x_high, const float4& w) {
    step(x_low.x, x_low.y, x_high.x, x_high.y, w.x, w.y);
    step(x_low.z, x_low.w, x_high.z, x_high.w, w.z, w.w);
  }
  // Of rows group, group, group + 8, group + 8 and columns 2 · quad, 2 · quad + 1.
  TENDON_DEVICE float total(int i) const { return main[i] + rest[i]; }

 private:
  TENDON_DEVICE static float held(float v) { return __uint_as_float(__float_as_uint(v) & 0xffffe000U); }
  TENDON_DEVICE void step(uint32_t low0, uint32_t low1, uint32_t high0, uint32_t high1, float w0, float w1) {
    const float a[4] = {__uint_as_float(low0), __uint_as_float(high0), __uint_as_float(low1), __uint_as_float(high1)};
    const float b[2] = {w0, w1};
    float a_held[4];
    float a_rest[4];
    float b_held[2];
    float b_rest[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) a_held[i] = held(a[i]), a_rest[i] = a[i] - a_held[i];
#pragma unroll
    for (int i = 0; i < 2; ++i) b_held[i] = held(b[i]), b_rest[i] = b[i] - b_held[i];
    mma_tf32(main, a_held, b_held);
    mma_tf32(rest, a_held, b_rest);
    mma_tf32(rest, a_rest, b_held);
  }
};

// x_t · wᵀ + bias for the block's eight columns, by each warp that asks: SplitSums' rows and columns, rows of actions.
TENDON_DEVICE void action_in(const Block& t, int step, const unsigned char* x_t, float (&out)[4]) {
  const float* const from = t.args.action_in + (t.block * kColumns + t.group) * kActionDim + 4 * t.quad;
  const float4 weights[2] = {load_constant_4(from), load_constant_4(from + 16)};
  const float* const bias =
      t.args.action_in_bias + step * t.args.action_in_bias_stride + t.block * kColumns + 2 * t.quad;
  const float added[2] = {load_constant(bias), load_constant(bias + 1)};
  const auto row = [&](int i) { return min(8 * (i & 1) + t.group, t.args.horizon - 1); };
  const auto column = [&](int i) { return 16 * (i >> 1) + 4 * t.quad; };
  uint4 x[4];
  if (step == 0) {  // the noise holds whatever the caller gave
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 v = load_constant_4(t.args.noise + row(i) * kActionDim + column(i));
      x[i] = make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z), __float_as_uint(v.w));
    }
  } else {
    await(x, [&](int i) { return x_t + (row(i) * kActionDim + column(i)) * 4; });
  }
  SplitSums sums;
  sums.add(x[0], x[1], weights[0]);
  sums.add(x[2], x[3], weights[1]);
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = sums.total(i) + added[i & 1];
}

constexpr int kMlpGroups = kWidth / kWarps / 16;  // of 16 of the depth, a warp

// This lane's weights of mlp_out: column group of the block's, four neighbours of the depth in every group.
TENDON_DEVICE void load_mlp_out(const Block& t, float4 (&weights)[kMlpGroups]) {
#pragma unroll
  for (int i = 0; i < kMlpGroups; ++i) {
    weights[i] = load_constant_4(t.args.mlp_out + int64_t{t.block * kColumns + t.group} * kWidth +
                                 t.warp * (kWidth / kWarps) + 16 * i + 4 * t.quad);
  }
}

// hidden · mlp_outᵀ + bias for the block's eight columns. Leaves the action rows in shared memory.
TENDON_DEVICE void mlp_out(const Block& t, const float4 (&weights)[kMlpGroups], const unsigned char* hidden) {
  uint4 h[2 * kMlpGroups];
  await(h, [&](int i) {
    return hidden + (min(8 * (i & 1) + t.group, t.args.horizon - 1) * kWidth + t.warp * (kWidth / kWarps) +
                     16 * (i >> 1) + 4 * t.quad) *
                        4;
  });
  SplitSums sums;
#pragma unroll
  for (int i = 0; i < kMlpGroups; ++i) sums.add(h[2 * i], h[2 * i + 1], weights[i]);
  const uint32_t sums_at = t.shared + SharedLayout::kSumsNarrow;  // [warp][row][column]
  const uint32_t mine = sums_at + ((t.warp * kRows + t.group) * kColumns + 2 * t.quad) * 4;
  store_shared_floats(mine, sums.total(0), sums.total(1));
  store_shared_floats(mine + 8 * kColumns * 4, sums.total(2), sums.total(3));
  compute_sync();
  if (t.thread < kColumns * kMaxRows) {
    const int c = t.thread % kColumns;
    const int row = t.thread / kColumns;
    float sum = load_constant(t.args.mlp_out_bias + t.block * kColumns + c);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += load_shared_float(sums_at + ((w * kRows + row) * kColumns + c) * 4);
    const int leading = t.args.rows - t.args.horizon;
    if (row < t.args.horizon) {
      store_shared_float(t.shared + SharedLayout::kTokens + ((leading + row) * kColumns + c) * 4, sum);
    }
  }
}

// x_t → the first layer's input, in every block the columns that it owns; the residual stream starts here, handed on
// times `gains` of the first norm.
template <bool kPi05>
TENDON_DEVICE void token_stage(Block& t, int step, const float* gains, unsigned char* exchange) {
  const int leading = t.args.rows - t.args.horizon;
  const uint32_t tokens = t.shared + SharedLayout::kTokens;
  const Block::Own own = t.own();
  const float gain = load_constant(gains + t.block * kColumns + own.column);
  unsigned char* const hidden = exchange + Exchange::kActionHidden;
  float4 weights[kMlpGroups];  // on their way while x_t is
  if constexpr (!kPi05) load_mlp_out(t, weights);
  if (t.warp == 0) {
    float in[4];
    action_in(t, step, exchange + Exchange::kActions, in);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 8 * j + t.group;
      if (row >= t.args.horizon) continue;
      if constexpr (kPi05) {
        store_shared_floats(tokens + ((leading + row) * kColumns + 2 * t.quad) * 4, in[2 * j], in[2 * j + 1]);
      } else {
        store_relaxed_8(hidden + (row * kWidth + t.block * kColumns + 2 * t.quad) * 4, __float_as_uint(silu(in[2 * j])),
                        __float_as_uint(silu(in[2 * j + 1])));
      }
    }
  }
  if constexpr (!kPi05) {
    if constexpr (kMeets) t.next_stage(exchange);
    mlp_out(t, weights, hidden);
    if (leading > 0 && t.thread < kColumns) {
      store_shared_float(tokens + t.thread * 4, load_constant(t.args.state_token + t.block * kColumns + t.thread));
    }
  }
  compute_sync();
  if (!own.mine) return;
  t.residual =
      own.row < t.args.rows ? rounded<Bf16>(load_shared_float(tokens + (own.row * kColumns + own.column) * 4)) : 0.0F;
  t.publish(own, gain, exchange + Exchange::kTokens);
}

// What is left of the final norm, action_out and the Euler step: block 32g + a makes action `a` of action rows g, g + 4
// and g + 8. Threads 0–2 carry x_t of these through the steps in `x_t`.
template <bool kPi05, Rule kRule>
TENDON_DEVICE void velocity_stage(const Block& t, const Previous<kRule>& previous, const Given<kRule>& given, int step,
                                  const unsigned char* x, float& x_t, unsigned char* exchange) {
  constexpr int kGroups = kBlocks / kActionDim;
  constexpr int kMine = kMaxRows / kGroups;
  const int action = t.block % kActionDim;
  const int first_row = t.block / kActionDim;
  const int leading = t.args.rows - t.args.horizon;
  const int column = 4 * t.thread;
  const float4 weight = load_constant_4(t.args.action_out + action * kWidth + column);
  float4 shift = make_float4(0, 0, 0, 0);
  if constexpr (kPi05) {
    shift =
        load_constant_4(t.args.modulation +
                        (int64_t{step} * (2 * t.args.layers + 1) + 2 * t.args.layers) * (3 * kWidth) + kWidth + column);
  }
  uint2 v[kMine];
  const auto valid = [&](int i) { return first_row + i * kGroups < t.args.horizon; };
  const auto from = [&](int i) {
    return activation_word(const_cast<unsigned char*>(x), t.thread >> 1, leading + first_row + i * kGroups,
                           2 * (t.thread & 1));
  };
  const auto squares_from = [&](int i) {
    return x + Exchange::kSquares + (t.thread * kRows + ((leading + first_row + i * kGroups) & ~1)) * 2;
  };
  const bool has_squares = t.thread < kBlocks;  // of one block each
  uint32_t squares[kMine];
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    v[i] = valid(i) ? make_uint2(kEmpty, kEmpty) : make_uint2(0, 0);
    squares[i] = valid(i) && has_squares ? kEmpty : 0;
  }
  Patience patience;
  bool missing;
  do {
    missing = false;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if (v[i].x == kEmpty || v[i].y == kEmpty) v[i] = load_relaxed_8(from(i));
      if (squares[i] == kEmpty) squares[i] = load_relaxed_4(squares_from(i));
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) missing |= v[i].x == kEmpty || v[i].y == kEmpty || squares[i] == kEmpty;
    if (missing) patience.lose();
  } while (missing);
  float sums[2 * kMine + 1];  // products and squares of every row, then the shift's product
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const float e[4] = {low_bf16(v[i].x), high_bf16(v[i].x), low_bf16(v[i].y), high_bf16(v[i].y)};
    sums[2 * i] = e[0] * weight.x + e[1] * weight.y + e[2] * weight.z + e[3] * weight.w;
    sums[2 * i + 1] = ((leading + first_row + i * kGroups) & 1) != 0 ? high_bf16(squares[i]) : low_bf16(squares[i]);
  }
  sums[2 * kMine] = shift.x * weight.x + shift.y * weight.y + shift.z * weight.z + shift.w * weight.w;
  const uint32_t sums_at = t.shared + SharedLayout::kSumsWide;  // [warp][2 · kMine + 1]
#pragma unroll
  for (int i = 0; i < 2 * kMine + 1; ++i) {
    sums[i] = wave_sum(sums[i]);
    if (t.lane == 0) store_shared_float(sums_at + (t.warp * (2 * kMine + 1) + i) * 4, sums[i]);
  }
  compute_sync();
  if (t.thread >= kMine || !valid(t.thread)) return;
  float product = 0.0F;
  float square_sum = 0.0F;
  float constant = load_constant(t.args.action_out_bias + action);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const uint32_t at = sums_at + w * (2 * kMine + 1) * 4;
    product += load_shared_float(at + 2 * t.thread * 4);
    square_sum += load_shared_float(at + (2 * t.thread + 1) * 4);
    constant += load_shared_float(at + 2 * kMine * 4);
  }
  const float velocity = product * rsqrtf(square_sum * (1.0F / kWidth) + t.args.eps) + constant;
  if constexpr (kRule == Rule::kNone) {
    x_t += t.args.dt * velocity;
  } else {
    x_t = given.next(t.args, previous, step, x_t, velocity);
  }
  const int at = (first_row + t.thread * kGroups) * kActionDim + action;
  if (step + 1 == t.args.steps) {
    t.args.actions[at] = x_t;
  } else {
    store_relaxed_4(exchange + Exchange::kActions + at * 4, __float_as_uint(x_t));
  }
}

}  // namespace tendon::gpu::denoise
