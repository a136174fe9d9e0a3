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

#include "backend/cuda/hopper/epilogue.cuh"

namespace tendon::gpu::hopper {

// The scales of a tile's codes, as a thread keeps them while its warpgroup multiplies.
template <class T>
struct TileScales {
  float x[2];              // of tokens `thread` and `thread` + 128 of the tile
  float w[T::kBlocks][2];  // of the thread's rows; of gate and up, or a head's halves, eight of each in turn
  TENDON_DEVICE TileScales(const TileArgs& a, int first_col, int first_token) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = first_token + thread + i * 128;
      x[i] = token < a.rows ? __ldcg(a.x_scales + token) : 0.0F;
    }
#pragma unroll
    for (int block = 0; block < T::kBlocks; ++block) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        constexpr bool kGateUp = T::kTail == Tail::kGateUp;
        const int warp = thread / 32;
        int col = lane() / 4;
        if constexpr (T::kTail == Tail::kRope) {
          const int in_all = first_col + block * 64;
          const int head_col = in_all / (2 * a.rope.half) * (2 * a.rope.half);
          col += head_col + (in_all - head_col) / 2 + warp * 8 + h * a.rope.half;
        } else if constexpr (T::kPairsColumns) {
          col = column_of<T>(first_col + block * 64, warp, h);
        } else {
          col += first_col + (kGateUp ? block * 32 + warp * 8 : block * 64 + warp * 16 + h * 8);
        }
        w[block][h] = col < a.cols ? (kGateUp && h == 1 ? a.up_scales : a.w_scales)[col] : 0.0F;
      }
    }
  }
  // Tokens' scales go round through the memory where sums are turned later.
  template <class Sum>
  TENDON_DEVICE void apply(const Ring<T>& ring, int warpgroup, const Sum (&sums)[T::kBlocks][4 * T::kGroups],
                           float (&numbers)[T::kBlocks][4 * T::kGroups]) const {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const uint32_t all = ring.turn(warpgroup);
    warpgroup_sync(1 + warpgroup);  // the buffers are read no more
    store_shared(all + thread * 4, x[0]);
    store_shared(all + thread * 4 + 512, x[1]);
    warpgroup_sync(1 + warpgroup);
#pragma unroll
    for (int g = 0; g < T::kGroups; ++g) {
      float of_tokens[2];
      load_two(all + (g * 8 + lane() % 4 * 2) * 4, of_tokens);
#pragma unroll
      for (int block = 0; block < T::kBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          numbers[block][4 * g + i] = static_cast<float>(sums[block][4 * g + i]) * (of_tokens[i % 2] * w[block][i / 2]);
        }
      }
    }
  }
};

// From a warpgroup's sums of a tile to what is stored.
template <class T>
TENDON_DEVICE void finish_tile(const float (&sums)[T::kBlocks][4 * T::kGroups], const TileArgs& a,
                               const CUtensorMap* out, const Ring<T>& ring, const Place<T>& place, int warpgroup,
                               int tile, int first_col, const float (&bias)[T::kBlocks][2]) {
  if constexpr (T::kParts > 1) {  // one tile a block: launched so
    cluster_meet();               // nobody reads the stages any more, where the sums go
    send_parts<T, 0>(sums, ring, place);
    wait_phase(ring.sent(), 0);
  }
  if constexpr (T::kMakesCodes) {
    if (first_col == 0) write_unit_scales<T>(a, place.first_token(a, tile));
  }
  if constexpr (T::kTail == Tail::kGateUp) {
    finish_gate_up<T>(sums, a, ring, warpgroup, first_col, place.first_token(a, tile));
  } else if constexpr (T::kTail == Tail::kRope) {
    finish_rope<T>(sums, a, ring, place, warpgroup, first_col, place.first_token(a, tile));
  } else if constexpr (T::kMakesCodes) {
    finish_codes<T>(sums, a, out, ring, warpgroup, first_col, place.first_token(a, tile), bias);
  } else {
    finish<T>(sums, a, out, ring, place, warpgroup, first_col, place.first_token(a, tile), bias);
  }
}

// One step of a tile's products.
template <class T>
using Step = std::conditional_t<std::is_same_v<typename T::Operand, int8_t>, WgmmaI8<T::kGroups>,
                                std::conditional_t<T::kScaled, WgmmaE4m3<T::kGroups>, Wgmma<T::kGroups>>>;

struct NoScales {
  TENDON_DEVICE NoScales(const TileArgs&, int, int) {}
};

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
    [[maybe_unused]] const std::conditional_t<T::kScaled, TileScales<T>, NoScales> scales(a, first_col,
                                                                                          place.first_token(a, tile));
    const auto finish = [&](const auto& whole) {
      if constexpr (T::kScaled) {
        float numbers[T::kBlocks][4 * T::kGroups];
        scales.apply(ring, warpgroup, whole, numbers);
        finish_tile<T>(numbers, a, out, ring, place, warpgroup, tile, first_col, bias);
      } else {
        finish_tile<T>(whole, a, out, ring, place, warpgroup, tile, first_col, bias);
      }
    };
    if constexpr (T::kWidens) {
      float totals[T::kBlocks][4 * T::kGroups] = {};
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
