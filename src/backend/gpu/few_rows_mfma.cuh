// The kernel of few_rows.cuh on the matrix units of waves of 64 lanes.
//
// Weights go straight into registers: one thread alone reads each of them, and loads are asynchronous there anyway. Two
// groups of eight weight rows are one operand of sixteen; where a job has a single group, the other half is zero. Lane
// l holds row l mod 16 of x and of the operand, and of every 32 values of depth 8·(l / 16) .. + 7. Weights are the left
// operand, so that a lane ends up with four neighbouring outputs of one row.
#pragma once

#include "backend/gpu/device/mfma.cuh"
#include "backend/gpu/few_rows_job.cuh"

namespace tendon::gpu {

constexpr int kFewRowsGroups = 1;  // of waves, at most

template <class Job>
struct FewRowsShape {
  static constexpr int kGroupThreads = Job::kWaves * kWarpSize;
  static constexpr int kThreads = kGroupThreads;
  static constexpr int kUnits = (Job::kTiles + 1) / 2;            // operands of sixteen weight rows
  static constexpr int kPitch = Job::kTiles * 8 + 4;              // of the sums: 16-byte rows, few bank conflicts
  static constexpr int kDepth = Job::kWaves * Job::kBlocks * 32;  // of one round
  static constexpr size_t kWeightBytes = 0;                       // of shared memory
  static constexpr size_t kSums = size_t{Job::kWaves} * 16 * kPitch;
};

// Pieces of the kernel: what a lane has of 32 values of depth from `at` on.
template <class Job>
struct FewRowsNormed {
  const float *gains, *shifts;  // (kDepth) in shared memory

  TENDON_DEVICE static float squares_of(const Octet& x) {
    float sum = 0;
#pragma unroll
    for (const uint32_t pair : x.pair) sum += low_bf16(pair) * low_bf16(pair) + high_bf16(pair) * high_bf16(pair);
    return sum;
  }
  TENDON_DEVICE void apply(Octet& x, float scale, int at) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float shift[2] = {0, 0};
      if constexpr (Job::kNorm == FewRowsNorm::kAdaRms)
        shift[0] = shifts[at + 2 * i], shift[1] = shifts[at + 2 * i + 1];
      x.pair[i] = pack_bf16(low_bf16(x.pair[i]) * scale * gains[at + 2 * i] + shift[0],
                            high_bf16(x.pair[i]) * scale * gains[at + 2 * i + 1] + shift[1]);
    }
  }
  // 1 / sqrt(mean of squares + eps) of this lane's row, from its part of the sum. One barrier.
  TENDON_DEVICE static float scale_of(float sum, const FewRowsInput& in, float* squares) {
    sum += shuffle_xor(sum, 16);
    sum += shuffle_xor(sum, 32);
    if (lane() < 16) squares[wave() * 16 + lane()] = sum;
    block_sync();
    float total = 0;
#pragma unroll
    for (int i = 0; i < Job::kWaves; ++i) total += squares[i * 16 + lane() % 16];
    return 1.0F / sqrtf(total / static_cast<float>(in.depth) + in.eps);
  }
};

// kExact: the waves share the depth out in one go, and all of a wave's part is in registers at once; the weights stay
// there for all rows. Else one step of 32 values after the other, read again for every sixteen rows.
template <class Job, bool kExact>
TENDON_KERNEL void __launch_bounds__(FewRowsShape<Job>::kThreads) few_rows_kernel(Job job) {
  using Shape = FewRowsShape<Job>;
  constexpr int kBlocks = Job::kBlocks;
  constexpr int kRowBlocks = Job::kRowBlocks;
  constexpr int kUnits = Shape::kUnits;
  constexpr int kPitch = Shape::kPitch;
  constexpr bool kNormed = Job::kNorm != FewRowsNorm::kNone;
  constexpr bool kShifted = Job::kNorm == FewRowsNorm::kAdaRms;
  static_assert(Job::kGroups == 1 && (Job::kTiles == 1 || Job::kTiles % 2 == 0));
  static_assert(kBlocks % kRowBlocks == 0 && (!kNormed || kBlocks == kRowBlocks));
  TENDON_DYNAMIC_SHARED(memory);
  float* const sums = reinterpret_cast<float*>(memory);  // kWaves × (16, kPitch)
  TENDON_SHARED(float, squares, (kNormed ? Job::kWaves * 16 : 1));
  TENDON_SHARED(float, gains, (kNormed ? Shape::kDepth : 1));
  TENDON_SHARED(float, shifts, (kShifted ? Shape::kDepth : 1));

  const FewRowsInput in = job.input;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane_row = lane() % 16;
  const int quarter = lane() / 16;
  const int first_depth = wave() * kBlocks * 32 + quarter * 8;  // of block 0
  const FewRowsNormed<Job> norm{gains, shifts};

  const auto weight = [&](int unit, int depth) {
    const int tile = unit * 2 + lane_row / 8;
    if (Job::kTiles == 1 && tile > 0) return Octet{};
    return load_octet(job.weights(tile) + lane_row % 8 * job.weight_stride() + depth);
  };
  Octet w[kUnits][kExact ? kBlocks : 1];
  if constexpr (kExact) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) w[unit][block] = weight(unit, first_depth + block * 32);
    }
  }
  if constexpr (kNormed) {
    for (int i = thread; i < Shape::kDepth; i += Shape::kThreads) {
      const bool valid = kExact || i < in.depth;
      gains[i] = valid ? 1.0F + in.gain[i] : 0.0F;
      if constexpr (kShifted) shifts[i] = valid ? in.shift[i] : 0.0F;
    }
  }
  auto constants = job.constants({0, thread});
  wait_for_producers();

  const auto row_of = [&](int first_row) {  // beyond the last row that row again, never stored
    const int row = first_row + lane_row;
    return in.x + (row < in.rows ? row : in.rows - 1) * in.x_stride;
  };
  Octet x[kRowBlocks];
  const auto load_rows = [&](int first_row, int first_block) {
    const Bf16* const from = row_of(first_row);
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block)
      x[block] = load_fresh(from + first_depth + (first_block + block) * 32);
  };
  if constexpr (kExact) load_rows(0, 0);
#pragma unroll 1
  for (int first_row = 0; first_row < in.rows; first_row += 16) {
    const bool more = first_row + 16 < in.rows;
    const FewRowsPlace place{first_row, thread};
    if (first_row > 0) constants = job.constants(place);
    const auto early = job.early(place);
    float acc[kUnits][4] = {};
    if constexpr (kExact) {
      if constexpr (kNormed) {
        float sum = 0;
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) sum += norm.squares_of(x[block]);
        const float scale = norm.scale_of(sum, in, squares);
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) norm.apply(x[block], scale, first_depth + block * 32);
      }
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        if (block > 0 && block % kRowBlocks == 0) load_rows(first_row, block);
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) mfma(acc[unit], w[unit][block], x[block % kRowBlocks]);
      }
    } else {
      const Bf16* const from = row_of(first_row);
      float scale = 1;
      if constexpr (kNormed) {
        float sum = 0;
#pragma unroll 1
        for (int at = wave() * 32 + quarter * 8; at < in.depth; at += Job::kWaves * 32)
          sum += norm.squares_of(load_fresh(from + at));
        scale = norm.scale_of(sum, in, squares);
      }
#pragma unroll 1
      for (int step = wave() * 32; step < in.depth; step += Job::kWaves * 32) {
        const int at = step + quarter * 8;
        const bool valid = at < in.depth;  // all lanes take part in the product
        Octet part = valid ? load_fresh(from + at) : Octet{};
        if constexpr (kNormed) norm.apply(part, scale, at);
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) mfma(acc[unit], valid ? weight(unit, at) : Octet{}, part);
      }
    }
    if (Job::kTiles > 1 || quarter < 2) {
      float* const mine = sums + (wave() * 16 + lane_row) * kPitch + quarter * 4;
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit)
        store_vec(mine + unit * 16, Vec<float>{{acc[unit][0], acc[unit][1], acc[unit][2], acc[unit][3]}});
    }
    if constexpr (kExact) {
      if (more) load_rows(first_row + 16, 0);  // travels while the sums meet
    }
    block_sync();
    job.finish(place, sums, constants, early);
    if (!kNormed && more) block_sync();  // a norm has its own barrier before `sums` changes
  }
}

}  // namespace tendon::gpu
