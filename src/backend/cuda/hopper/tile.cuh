// y = x · wᵀ and what follows it, on wgmma: the weights are the rows of the tensor cores' tiles and the tokens their
// columns, so that a tile fits any number of tokens in steps of eight.
//   w (N, K) bf16 [gate and up: two of them], x (M, K) bf16, out (M, N) bf16, bias (N) f32, residual (M, N) bf16.
//   K, N multiples of 8, all rows 16-byte aligned. x and w may be codes of one kind, K a multiple of 16: the scales
//   of their rows meet the sums before anything else follows. Sums of i8 codes are whole numbers.
// A warp, or a warpgroup, copies: boxes of 128 bytes along K, by TMA, into a ring of stages; blocks of a cluster share
// what they have in common. Warpgroups multiply 64 · kBlocks weight rows each and run through the ring independently,
// so that one's epilogue hides behind the other's products. Gate and up rows alternate by eight in a tile (the copy
// interleaves them), so that one thread has both sums of a pair. With kParts, as many blocks of a cluster share out K:
// each sends the others their tokens' sums through shared memory and finishes its own, in a fixed order.
#pragma once

#include "backend/cuda/hopper/gate_up.cuh"
#include "backend/cuda/hopper/rope.cuh"

namespace tendon::gpu::hopper {

// From a warpgroup's sums of a tile to what is stored.
template <class T, class Sum>
TENDON_DEVICE void finish_tile(const TileSums<T, Sum>& sums, const TileArgs& a, const CUtensorMap* out,
                               const Place<T>& place, int tile, int first_col, const float (&bias)[T::kBlocks][2],
                               const float (&factors)[T::kBlocks][2]) {
  const int first_token = place.first_token(a, tile);
  sums.scales.share(sums.ring, sums.warpgroup);
  if constexpr (T::kParts > 1) {  // one tile a block: launched so
    cluster_meet();               // nobody reads the stages any more, where the sums go
    send_parts<T, Sum, 0>(sums.sums, sums.ring, place);
    wait_phase(sums.ring.sent(), 0);
  }
  if constexpr (T::kMakesCodes) {
    if (first_col == 0) write_unit_scales<T>(a, first_token);
  }
  if constexpr (T::kPairsBlocks) {
    finish_gate_up_codes<T>(sums, a, first_col, first_token);
  } else if constexpr (T::kTail == Tail::kGateUp) {
    finish_gate_up<T>(sums, a, first_col, first_token);
  } else if constexpr (T::kTail == Tail::kRope) {
    finish_rope<T>(sums, a, place, first_col, first_token);
  } else if constexpr (T::kMakesCodes) {
    finish_codes<T>(sums, a, out, first_col, first_token, bias, factors);
  } else {
    finish<T>(sums, a, out, place, first_col, first_token, bias);
  }
}

// One step of a tile's products.
template <class T>
using Step = std::conditional_t<std::is_same_v<typename T::Operand, int8_t>, WgmmaI8<T::kGroups>,
                                std::conditional_t<T::kScaled, WgmmaE4m3<T::kGroups>, Wgmma<T::kGroups>>>;

// The rows of a table, with which what a tile adds up begins.
template <class T>
TENDON_DEVICE void begin_totals(const TileArgs& a, int first_col, int first_token,
                                float (&totals)[T::kBlocks][4 * T::kGroups]) {
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
  for (int g = 0; g < T::kGroups; ++g) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = first_token + g * 8 + lane() % 4 * 2 + i;
      const float* const row = a.table + token % a.table_rows * a.table_stride;
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int col = column_of<T>(first_col + block * 64, warp, h);
          totals[block][4 * g + 2 * h + i] = token < a.rows && col < a.cols ? __ldg(row + col) : 0.0F;
        }
      }
    }
  }
}

// One warpgroup multiplies and finishes its rows of every tile.
template <class T>
TENDON_DEVICE void multiply(Ring<T> ring, const TileArgs& a, const CUtensorMap* out, const Place<T>& place,
                            int warpgroup, int first_tile, int tile_stride) {
  const int begin = place.first_step(a);
  const int end = place.end_step(a);
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const auto release = [&](const Ring<T>& used) {
    constexpr int kSharers = T::kClusterTokens + T::kClusterWeights - 1;
    const int l = lane();
    if (l < kSharers) {
      const int w = l - T::kClusterTokens;
      arrive_at(used.empty(), l < T::kClusterTokens ? place.rank(place.weights, l)
                                                    : place.rank(w + (w >= place.weights), place.tokens));
    }
  };
  const auto multiply_stage = [&](typename T::Sum(&sums)[T::kBlocks][4 * T::kGroups], const Ring<T>& from, bool adds) {
    const uint64_t w = swizzled_rows(from.weights() + warpgroup * T::kBlocks * 64 * kRowBytes);
    const uint64_t x = swizzled_rows(from.tokens());
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) {
        Step<T>::run(sums[block], w + block * (64 * kRowBytes / 16) + k * kDescriptorStep, x + k * kDescriptorStep,
                     adds || k > 0);
      }
    }
    wgmma_commit();
  };
  typename T::Sum sums[T::kBlocks][4 * T::kGroups];
  for (int tile = first_tile; tile < a.tiles; tile += tile_stride) {
    const int first_weight = place.first_weight(a, tile) + warpgroup * 64 * T::kBlocks;
    const int first_col = T::kTail == Tail::kGateUp ? first_weight / 2 : first_weight;
    float bias[T::kBlocks][2] = {};
    if (T::kTail != Tail::kGateUp && a.bias != nullptr) {
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int col = column_of<T>(first_col + block * 64, warp, h);
          bias[block][h] = col < a.cols ? a.bias[col] : 0.0F;
        }
      }
    }
    float factors[T::kBlocks][2] = {};
    if constexpr (T::kPairsColumns) {
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int col = column_of<T>(first_col + block * 64, warp, h);
          if (col < a.cols) factors[block][h] = a.factors[col];
        }
      }
    }
    const ScalesOf<T> scales(a, first_col, place.first_token(a, tile));
    const auto finish = [&]<class Sum>(const Sum(&whole)[T::kBlocks][4 * T::kGroups]) {
      finish_tile<T, Sum>({whole, scales, ring, warpgroup}, a, out, place, tile, first_col, bias, factors);
    };
    if constexpr (T::kAddsUp) {
      float totals[T::kBlocks][4 * T::kGroups] = {};
      if constexpr (T::kTail == Tail::kTable) begin_totals<T>(a, first_col, place.first_token(a, tile), totals);
      for (int step = begin; step < end; ++step, ring.next()) {
        wait_phase(ring.full(), ring.phase);
        multiply_stage(sums, ring, false);
        wgmma_wait<0>();
        release(ring);
#pragma unroll
        for (int block = 0; block < T::kBlocks; ++block) {
          hold(sums[block]);
#pragma unroll
          for (int i = 0; i < 4 * T::kGroups; ++i) totals[block][i] += sums[block][i];
        }
      }
      finish(totals);
    } else {
      Ring<T> used = ring;
      for (int step = begin; step < end; ++step, ring.next()) {
        wait_phase(ring.full(), ring.phase);
        multiply_stage(sums, ring, step > begin);
        if (step > begin) {
          wgmma_wait<1>();
          release(used);
        }
        used = ring;
      }
      wgmma_wait<0>();
      release(used);
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) hold(sums[block]);
      finish(sums);
    }
    if constexpr (T::kMoreSteps > 0) {
      __syncwarp();  // one thread has waited until shared memory was read
#pragma unroll 1
      for (int step = 0; step < T::kMoreSteps; ++step, ring.next()) {
        wait_phase(ring.full(), ring.phase);
        if (tile + tile_stride < a.tiles) release(ring);  // else no arrival at a block that may have ended
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1) tile_kernel(const __grid_constant__ TileMaps maps, TileArgs a) {
#ifdef TENDON_HOPPER
  extern __shared__ unsigned char dynamic[];
  const Ring<T> ring{(shared_address(dynamic) + 1023) & ~1023U};
  const Place<T> place(T::kCluster > 1 ? cluster_rank() : 0);
  const int first_tile = static_cast<int>(blockIdx.x) / T::kCluster;
  const int tile_stride = static_cast<int>(gridDim.x) / T::kCluster;
  const bool feeds = threadIdx.x == T::kMultipliers;
  int early = 0;
  if (feeds) {
    prefetch_map(&maps.weights);
    prefetch_map(&maps.tokens);
    Ring<T> each = ring;
    for (int s = 0; s < T::kStages; ++s, each.next()) {
      barrier_init(each.full(), 1);
      barrier_init(each.empty(), T::kWarpgroups * 4 * (T::kClusterTokens + T::kClusterWeights - 1));
    }
    if constexpr (T::kParts > 1) {
      barrier_init(ring.sent(), 1);
      barrier_expect(ring.sent(), place.bytes_sent());
    }
    barrier_init_done();
    // Only this block's barriers take part.
    if constexpr (T::kClusterTokens == 1) early = feed_early(ring, maps, a, place, first_tile);
  }
  block_sync();
  if constexpr (T::kCluster > 1) cluster_meet();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == T::kWarpgroups) {
    if constexpr (T::kShiftsRegisters) give_registers<(T::kWarpgroups > 2 ? 32 : 24)>();
    Ring<T> end = ring;
    if (feeds) {
      if constexpr (T::kClusterTokens > 1) early = feed_early(ring, maps, a, place, first_tile);
      wait_for_producers();
      end = feed(ring, maps, a, place, first_tile, tile_stride, early);
      launch_dependents();
    }
    __syncwarp();
    if constexpr (T::kParts > 1) {
      cluster_meet();
      if (T::kMoreSteps > 0 && feeds) {
        const int begin = place.part * T::kGroups / T::kParts * 8;
        const int tokens = (place.part + 1) * T::kGroups / T::kParts * 8 - begin;
        copy_residual(end, &maps.residual, a, 0, place.first_weight(a, first_tile),
                      place.first_token(a, first_tile) + begin, tokens);
      }
    }
  } else {
    if constexpr (T::kShiftsRegisters) take_registers<(T::kWarpgroups > 2 ? 160 : 240)>();
    wait_for_producers();
    multiply<T>(ring, a, &maps.out, place, warpgroup, first_tile, tile_stride);
  }
  if constexpr (T::kCluster > 1 && T::kParts == 1) {  // others still copy into this block, or arrive at its barriers
    cluster_meet();
  }
#endif
}

}  // namespace tendon::gpu::hopper
