// The kernel of few_rows.cuh on mma.m16n8k16.
//
// Every thread first starts copying its part of the weights into shared memory, all of it in flight at once, and only
// then waits for the kernels in front: with overlapping launches the weights arrive while those still run. A thread
// reads back only what it copied itself, in fragment order, without bank conflicts. Rows of x come straight from the
// second-level cache into fragments. With many rows two groups of waves take every other sixteen rows and share the
// weights.
//
// Depth order inside a wave's 32 values: thread t of a group of four holds values 8t .. 8t + 7 of x and of w, and feeds
// 8t + {0, 1}, {2, 3} to the first product and {4, 5}, {6, 7} to the second. A product sums over depth, so any order
// will do that x and w share; this one makes all loads 16 bytes.
#pragma once

#include "backend/gpu/device/mma.cuh"
#include "backend/gpu/few_rows_job.cuh"

namespace tendon::gpu {

constexpr int kFewRowsGroups = 2;  // of waves, at most

template <class Job>
struct FewRowsShape {
  static constexpr int kGroupThreads = Job::kWaves * kWarpSize;
  static constexpr int kThreads = Job::kGroups * kGroupThreads;
  // Eight rows of a fragment fall into different banks.
  static constexpr int kPitch = Job::kTiles % 4 != 1 ? Job::kTiles * 8 + 8 : Job::kTiles * 8;
  static constexpr int kDepth = Job::kWaves * Job::kBlocks * 32;  // of one round
  static constexpr size_t kWeightBytes = size_t{Job::kTiles} * Job::kBlocks * kGroupThreads * sizeof(Octet);
  static constexpr size_t kSums = size_t{Job::kWaves} * 16 * kPitch;  // of a group
};

// kExact: the depth is one round, and nothing has to be guarded.
template <class Job, bool kExact>
TENDON_KERNEL void __launch_bounds__(FewRowsShape<Job>::kThreads) few_rows_kernel(Job job) {
  using Shape = FewRowsShape<Job>;
  constexpr int kBlocks = Job::kBlocks;
  constexpr int kRowBlocks = Job::kRowBlocks;
  constexpr int kPitch = Shape::kPitch;
  constexpr bool kNormed = Job::kNorm != FewRowsNorm::kNone;
  constexpr bool kShifted = Job::kNorm == FewRowsNorm::kAdaRms;
  static_assert(kBlocks % kRowBlocks == 0 && (!kNormed || kBlocks == kRowBlocks));
  TENDON_DYNAMIC_SHARED(memory);
  const int group = Job::kGroups == 1 ? 0 : wave() / Job::kWaves;
  const int thread = static_cast<int>(threadIdx.x) - group * Shape::kGroupThreads;
  const int in_group = thread / kWarpSize;                     // wave
  Octet* const w = reinterpret_cast<Octet*>(memory) + thread;  // (kTiles, kBlocks, kGroupThreads)
  float* const sums = reinterpret_cast<float*>(memory + Shape::kWeightBytes) + group * Shape::kSums;
  TENDON_SHARED(float, squares, (kNormed ? Job::kGroups * Job::kWaves * 16 : 1));
  TENDON_SHARED(float, gains, (kNormed ? Shape::kDepth : 1));
  TENDON_SHARED(float, shifts, (kShifted ? Shape::kDepth : 1));

  const FewRowsInput in = job.input;
  const int quad = lane() / 4;                                       // row of a fragment
  const int first_depth = in_group * kBlocks * 32 + lane() % 4 * 8;  // of block 0
  const auto depth_of = [&](int round, int block) { return round * Shape::kDepth + first_depth + block * 32; };

  const auto load_weights = [&](int round) {
#pragma unroll
    for (int tile = 0; tile < Job::kTiles; ++tile) {
      if (Job::kGroups > 1 && tile % Job::kGroups != group) continue;
      const Bf16* const row = job.weights(tile) + quad * job.weight_stride();
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const int depth = depth_of(round, block);
        const bool valid = kExact || depth < in.depth;
        copy_async(reinterpret_cast<Bf16*>(w + (tile * kBlocks + block) * Shape::kGroupThreads),
                   valid ? row + depth : row, valid);
      }
    }
    copy_commit();
  };
  load_weights(0);
  if constexpr (kNormed) {
    for (int i = static_cast<int>(threadIdx.x); i < Shape::kDepth; i += Shape::kThreads) {
      const bool valid = kExact || i < in.depth;
      gains[i] = valid ? 1.0F + in.gain[i] : 0.0F;
      if constexpr (kShifted) shifts[i] = valid ? in.shift[i] : 0.0F;
    }
  }
  auto constants = job.constants({group * 16, thread});
  launch_dependents();
  wait_for_producers();

  Octet x[kRowBlocks][2];  // rows quad and quad + 8; beyond the last row that row again, never stored
  const auto load_rows = [&](int first_row, int round, int first_block) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + quad + 8 * half;
      const Bf16* const from = in.x + (row < in.rows ? row : in.rows - 1) * in.x_stride;
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        const int depth = depth_of(round, first_block + block);
        x[block][half] = kExact || depth < in.depth ? load_fresh(from + depth) : Octet{};
      }
    }
  };
  const auto norm_rows = [&] {
    float sum[2] = {0, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float a = low_bf16(x[block][half].pair[i]);
          const float b = high_bf16(x[block][half].pair[i]);
          sum[half] += a * a + b * b;
        }
      }
      sum[half] += shuffle_xor(sum[half], 1);
      sum[half] += shuffle_xor(sum[half], 2);
      if (lane() % 4 == 0) squares[wave() * 16 + quad + 8 * half] = sum[half];
    }
    block_sync();
    float scale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = 0;
#pragma unroll
      for (int i = 0; i < Job::kWaves; ++i) total += squares[(group * Job::kWaves + i) * 16 + quad + 8 * half];
      scale[half] = 1.0F / sqrtf(total / static_cast<float>(in.depth) + in.eps);
    }
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = first_depth + block * 32 + 2 * i;
        const float gain[2] = {gains[at], gains[at + 1]};
        float shift[2] = {0, 0};
        if constexpr (kShifted) shift[0] = shifts[at], shift[1] = shifts[at + 1];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t& pair = x[block][half].pair[i];
          pair = pack_bf16(low_bf16(pair) * scale[half] * gain[0] + shift[0],
                           high_bf16(pair) * scale[half] * gain[1] + shift[1]);
        }
      }
    }
  };

  const int rounds = kExact ? 1 : (in.depth + Shape::kDepth - 1) / Shape::kDepth;
  load_rows(group * 16, 0, 0);
  for (int base = 0; base < in.rows; base += 16 * Job::kGroups) {
    const int first_row = base + group * 16;  // of the group; may lie behind the last row
    const bool more = base + 16 * Job::kGroups < in.rows;
    const FewRowsPlace place{first_row, thread};
    if (base > 0) constants = job.constants(place);
    const auto early = job.early(place);
    copy_wait<0>();
    if constexpr (kNormed) {
      norm_rows();  // its barrier shows the weights to all groups
    } else if (Job::kGroups > 1) {
      block_sync();
    }
    float acc[Job::kTiles][4] = {};
    for (int round = 0;; ++round) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        if (block > 0 && block % kRowBlocks == 0) load_rows(first_row, round, block);
        const Octet &a = x[block % kRowBlocks][0], &b = x[block % kRowBlocks][1];
#pragma unroll
        for (int tile = 0; tile < Job::kTiles; ++tile) {
          const Octet v = w[(tile * kBlocks + block) * Shape::kGroupThreads];
          mma_bf16(acc[tile], {a.pair[0], b.pair[0], a.pair[1], b.pair[1]}, {v.pair[0], v.pair[1]});
          mma_bf16(acc[tile], {a.pair[2], b.pair[2], a.pair[3], b.pair[3]}, {v.pair[2], v.pair[3]});
        }
      }
      if (round + 1 >= rounds) break;
      if (Job::kGroups > 1) block_sync();  // all have read the weights
      load_weights(round + 1);
      load_rows(first_row, round + 1, 0);
      copy_wait<0>();
      if (Job::kGroups > 1) block_sync();
    }
    float* const mine = sums + in_group * 16 * kPitch;
#pragma unroll
    for (int tile = 0; tile < Job::kTiles; ++tile) {
      float* const at = mine + quad * kPitch + tile * 8 + lane() % 4 * 2;
      at[0] = acc[tile][0], at[1] = acc[tile][1];
      at[8 * kPitch] = acc[tile][2], at[8 * kPitch + 1] = acc[tile][3];
    }
    if (more) load_rows(first_row + 16 * Job::kGroups, 0, 0);  // travels while the sums meet
    block_sync();
    if (more && rounds > 1) load_weights(0);
    job.finish(place, sums, constants, early);
    if (!kNormed && more) block_sync();  // a norm has its own barrier before `sums` changes
  }
}

}  // namespace tendon::gpu
