// The whole denoise loop of up to 56 rows as one kernel, after the plan of cuda/denoise/ with other means: rows as the
// 64 rows of wgmma, activations through shared memory, the depth of o and down in eight parts.
// See docs/decisions/0011-persistent-denoise-wide.md.
#include "backend/cuda/denoise/stream.cuh"
#include "backend/cuda/denoise/tables.cuh"
#include "backend/cuda/denoise_wide/attention.cuh"
#include "backend/cuda/denoise_wide/ends.cuh"
#include "backend/cuda/denoise_wide/layer.cuh"
#include "backend/cuda/denoise_wide/loop.h"

namespace tendon::gpu::denoise::wide {
namespace {

template <bool kPi05, Rule kRule>
TENDON_DEVICE void compute(const LoopArgs& args, const Previous<kRule>& previous, uint32_t shared) {
  wait_for_producers();
  Block t(args, shared);
  unsigned char* const exchange = args.exchange;
  float x_t = 0.0F;  // see velocity_stage
  Given<kRule> given;
  if (t.block < args.horizon) {
    x_t = load_constant(args.noise + t.block * kActionDim + (t.thread >> 3));
    given.load(args, previous, t.block * kActionDim + (t.thread >> 3));
  }
  // Products read past the end of the activations, for rows that nobody uses.
  if (t.thread < 8)
    store_shared_16(shared + SharedLayout::kActivationEnd + t.thread * kUnitBytes, make_uint4(0, 0, 0, 0));
  uint32_t chunk = 0;
  int index = 0;  // layers done
  for (int step = 0; step < args.steps; ++step) {
    t.next_stage(exchange);
    const float* gains = args.gains + step * args.gain_stride;  // of the norm that comes next
    token_stage<kPi05>(t, step, gains, exchange);
    for (int layer = 0; layer < args.layers; ++layer, ++index) {
      unsigned char* const set = exchange + (index & 1) * Exchange::kSet;
      unsigned char* const other = exchange + ((index & 1) ^ 1) * Exchange::kSet;
      t.next_stage(exchange);
      qkv_stage(t, chunk, layer == 0 ? exchange + Exchange::kTokens : set + Exchange::kX,
                shift_of<kPi05>(args, args.qkv_shift, step, layer, kQkvWidth), set + Exchange::kQk, set + Exchange::kV);
      chunk += qkv_chunks(t.block);
      t.next_stage(exchange);
      attention_stage(t, chunk, set + Exchange::kQk, set + Exchange::kV, exchange + Exchange::kPartial,
                      set + Exchange::kPartialSums);
      chunk += kKvChunks;
      // Queries and keys of all blocks have come, so that every block has read the layer before to its end.
      if (index > 0) {
        make_empty(other + Exchange::kFirstEnd, Exchange::kSet - Exchange::kFirstEnd, t.block, t.thread);
      }
      t.next_stage(exchange);
      combine_stage(t, exchange + Exchange::kPartial, set + Exchange::kPartialSums, set + Exchange::kAttended);
      t.next_stage(exchange);
      split_stage<false>(t, chunk, set + Exchange::kAttended, exchange + Exchange::kOutSums);
      chunk += kOutChunks;
      t.next_stage(exchange);
      add_stage(t, exchange + Exchange::kOutSums, gate_of<kPi05>(args, step, 2 * layer), gains += kWidth,
                set + Exchange::kAfterAttention);
      t.next_stage(exchange);
      gate_up_stage(t, chunk, set + Exchange::kAfterAttention,
                    shift_of<kPi05>(args, args.gate_up_shift, step, layer, 2 * kMlp), set + Exchange::kHidden);
      chunk += kGateUpChunks;
      // Every block has added o to its residual, so nobody reads this layer's first half any more, nor what stands in
      // front of the first layer.
      make_empty(set, Exchange::kFirstEnd, t.block, t.thread);
      if (layer == 0) make_empty(exchange + Exchange::kTokens, Exchange::kBytes - Exchange::kTokens, t.block, t.thread);
      t.next_stage(exchange);
      split_stage<true>(t, chunk, set + Exchange::kHidden, exchange + Exchange::kDownSums);
      chunk += kDownChunks;
      t.next_stage(exchange);
      add_stage(t, exchange + Exchange::kDownSums, gate_of<kPi05>(args, step, 2 * layer + 1), gains += kWidth,
                other + Exchange::kX);
    }
    t.next_stage(exchange);
    velocity_stage<kPi05>(t, previous, given, step, exchange + (index & 1) * Exchange::kSet + Exchange::kX, x_t,
                          exchange);
  }
}

template <bool kPi05, Rule kRule>
__global__ __launch_bounds__(kThreads + 32, 1) void loop_kernel(const __grid_constant__ LoopArgs args,
                                                                const __grid_constant__ Previous<kRule> previous) {
#if __CUDA_ARCH__ >= 900  // elsewhere it is never launched: fits_card()
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = shared_address(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < SharedLayout::kSlots; ++i) {
      barrier_init(shared + SharedLayout::kFull + 8 * i, 1);
      barrier_init(shared + SharedLayout::kFree + 8 * i, 2);
    }
  }
  barrier_init_fence();
  __syncthreads();
  if (threadIdx.x >= kThreads) {
    const int block = static_cast<int>(blockIdx.x);
    stream_chunks<SharedLayout>(
        {.weights = args.weights + size_t{static_cast<unsigned>(first_chunk(block))} * kChunkBytes,
         .keys = args.keys + size_t{static_cast<unsigned>(block % kParts)} * kKvChunks * kChunkBytes,
         .weight_chunk_bytes = kChunkBytes,
         .layer_weight_bytes = kLayerWeightBytes,
         .layer_key_bytes = kLayerKvBytes,
         .before_keys = qkv_chunks(block),
         .keys_of_layer = kKvChunks,
         .of_layer = qkv_chunks(block) + kKvChunks + kLaterChunks,
         .layers = args.layers,
         .steps = args.steps},
        shared, static_cast<int>(threadIdx.x) - kThreads);
  } else {
    compute<kPi05>(args, previous, shared);
  }
#endif
}

template <bool kPi05, Rule kRule>
bool blocks_fit() {
  int device = 0;
  int processors = 0;
  int on_each = 0;
  cudaFuncAttributes code{};
  if (cudaFuncGetAttributes(&code, loop_kernel<kPi05, kRule>) != cudaSuccess || code.ptxVersion < 90 ||
      cudaFuncSetAttribute(loop_kernel<kPi05, kRule>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(SharedLayout::kBytes)) != cudaSuccess ||
      cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&on_each, loop_kernel<kPi05, kRule>, kThreads + 32,
                                                    SharedLayout::kBytes) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return processors * on_each >= kBlocks;
}

template <Rule kRule>
bool fits() {
  return blocks_fit<false, kRule>() && blocks_fit<true, kRule>();
}

}  // namespace

bool fits_card() { return fits<Rule::kNone>() && fits<Rule::kGuided>() && fits<Rule::kInpaint>(); }

template <Rule kRule>
void launch_loop(const LoopArgs& args, const Previous<kRule>& previous, bool pi05, Stream stream) {
  const LaunchShape shape{.grid = dim3(kBlocks),
                          .block = dim3(kThreads + 32),
                          .shared_bytes = SharedLayout::kBytes,
                          .stream = stream,
                          .overlaps = true};
  if (pi05) {
    launch<loop_kernel<true, kRule>>(shape, args, previous);
  } else {
    launch<loop_kernel<false, kRule>>(shape, args, previous);
  }
}
template void launch_loop(const LoopArgs&, const Previous<Rule::kNone>&, bool, Stream);
template void launch_loop(const LoopArgs&, const Previous<Rule::kGuided>&, bool, Stream);
template void launch_loop(const LoopArgs&, const Previous<Rule::kInpaint>&, bool, Stream);

}  // namespace tendon::gpu::denoise::wide
