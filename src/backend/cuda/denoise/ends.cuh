// What stands around the layers in every step of the persistent denoise kernel: from x_t to the first layer's input,
// and from the last layer's output to x_{t+1}. All of it in f32.
#pragma once

#include "backend/cuda/denoise/block.cuh"

namespace tendon::gpu::denoise {

constexpr int kColumns = kWidth / kBlocks;  // of the expert's width that a block owns

// Waits until none of the N words of v is empty; load(i) reads one again.
template <int N, class Load>
TENDON_DEVICE void await_words(uint32_t (&v)[N], int count, bool poll, Load load) {
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = i < count ? load(i) : 0;
  if (!poll) return;
  Patience patience;
  while (true) {
    bool missing = false;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (v[i] == kEmpty) {
        v[i] = load(i);
        missing = true;
      }
    }
    if (!missing) return;
    patience.lose();
  }
}

// act(x_t · wᵀ + bias) for the block's eight columns, one a warp: lane k holds the k-th action. Afterwards lane `row`
// has the value of that action row.
TENDON_DEVICE float action_in(const Block& t, int step, unsigned char* x_t, bool with_silu) {
  const int column = t.block * kColumns + t.warp;
  const float weight = load_constant(t.args.action_in + column * kActionDim + t.lane);
  const float bias = load_constant(t.args.action_in_bias + step * t.args.action_in_bias_stride + column);
  const bool first = step == 0;  // the noise holds whatever the caller gave
  uint32_t x[kMaxRows];
  await_words(x, t.args.horizon, !first, [&](int i) {
    const int at = i * kActionDim + t.lane;
    return first ? __float_as_uint(load_constant(t.args.noise + at)) : load_relaxed_4(x_t + at * 4);
  });
  float mine = 0.0F;
#pragma unroll
  for (int row = 0; row < kMaxRows; ++row) {
    const float sum = wave_sum(__uint_as_float(x[row]) * weight);
    if (t.lane == row) mine = sum;
  }
  mine += bias;
  return with_silu ? silu(mine) : mine;
}

// hidden · mlp_outᵀ + bias for the block's eight columns: thread k holds four of the depth. Leaves the action rows in
// shared memory.
TENDON_DEVICE void mlp_out(const Block& t, const float4 (&weights)[kColumns], const unsigned char* hidden) {
  uint4 h[kMaxRows];
  await(
      h, [&](int row) { return hidden + (row * kWidth + 4 * t.thread) * 4; },
      [&](int row) { return row < t.args.horizon; });
  const uint32_t sums_at = t.shared + SharedLayout::kSumsNarrow;  // [warp][column][row]
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    float v[kMaxRows];
#pragma unroll
    for (int row = 0; row < kMaxRows; ++row) {
      v[row] = __uint_as_float(h[row].x) * weights[c].x + __uint_as_float(h[row].y) * weights[c].y +
               __uint_as_float(h[row].z) * weights[c].z + __uint_as_float(h[row].w) * weights[c].w;
    }
    // Lanes 16 apart share out the rows, then lanes 8 apart: three rows stay.
    const bool upper = (t.lane & 16) != 0;
    float six[kMaxRows / 2];
#pragma unroll
    for (int i = 0; i < kMaxRows / 2; ++i) {
      const float given = shuffle_xor(upper ? v[i] : v[i + kMaxRows / 2], 16);
      six[i] = (upper ? v[i + kMaxRows / 2] : v[i]) + given;
    }
    const bool odd = (t.lane & 8) != 0;
    float three[kMaxRows / 4];
#pragma unroll
    for (int i = 0; i < kMaxRows / 4; ++i) {
      const float given = shuffle_xor(odd ? six[i] : six[i + kMaxRows / 4], 8);
      three[i] = (odd ? six[i + kMaxRows / 4] : six[i]) + given;
#pragma unroll
      for (int mask = 4; mask >= 1; mask /= 2) three[i] += shuffle_xor(three[i], mask);
    }
    if ((t.lane & 7) == 0) {
      const int row = (upper ? kMaxRows / 2 : 0) + (odd ? kMaxRows / 4 : 0);
#pragma unroll
      for (int i = 0; i < kMaxRows / 4; ++i) {
        store_shared_float(sums_at + ((t.warp * kColumns + c) * kMaxRows + row + i) * 4, three[i]);
      }
    }
  }
  compute_sync();
  if (t.thread < kColumns * kMaxRows) {
    const int c = t.thread % kColumns;
    const int row = t.thread / kColumns;
    float sum = load_constant(t.args.mlp_out_bias + t.block * kColumns + c);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      sum += load_shared_float(sums_at + ((w * kColumns + c) * kMaxRows + row) * 4);
    }
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
  if constexpr (kPi05) {
    const float mine = action_in(t, step, exchange + Exchange::kActions, false);
    if (t.lane < t.args.horizon) {
      store_shared_float(tokens + ((leading + t.lane) * kColumns + t.warp) * 4, mine);
    }
  } else {
    float4 weights[kColumns];  // on their way while x_t is
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      weights[c] = load_constant_4(t.args.mlp_out + (int64_t{t.block} * kColumns + c) * kWidth + 4 * t.thread);
    }
    const float mine = action_in(t, step, exchange + Exchange::kActions, true);
    unsigned char* const hidden = exchange + Exchange::kActionHidden;
    const int column = t.block * kColumns + t.warp;
    if (t.lane < t.args.horizon) store_relaxed_4(hidden + (t.lane * kWidth + column) * 4, __float_as_uint(mine));
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
template <bool kPi05>
TENDON_DEVICE void velocity_stage(const Block& t, int step, const unsigned char* x, float& x_t,
                                  unsigned char* exchange) {
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
    return x + Exchange::kSquares + (t.thread * kRows + leading + first_row + i * kGroups) * 4;
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
    sums[2 * i + 1] = __uint_as_float(squares[i]);
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
  x_t += t.args.dt * velocity;
  const int at = (first_row + t.thread * kGroups) * kActionDim + action;
  if (step + 1 == t.args.steps) {
    t.args.actions[at] = x_t;
  } else {
    store_relaxed_4(exchange + Exchange::kActions + at * 4, __float_as_uint(x_t));
  }
}

}  // namespace tendon::gpu::denoise
