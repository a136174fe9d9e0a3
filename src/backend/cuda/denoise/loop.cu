// The whole denoise loop as one kernel: 128 blocks in pairs stay on the card through all steps and layers. In each, one
// warp streams the block's weights (and cached keys) through a ring in shared memory, far ahead of the eight warps that
// compute. See docs/decisions/0008-persistent-denoise.md.
#include "backend/cuda/denoise/attention.cuh"
#include "backend/cuda/denoise/ends.cuh"
#include "backend/cuda/denoise/layer.cuh"
#include "backend/cuda/denoise/loop.h"
#include "backend/cuda/denoise/stream.cuh"
#include "backend/cuda/denoise/tables.cuh"

namespace tendon::gpu::denoise {
namespace {

// The threads of a block: those that compute, then the producer's warp with three idle ones beside it, for only four
// warps together can hand their registers to the others. So none of those that compute keeps a number in memory.
constexpr int kLaunched = kThreads + 128;

template <bool kPi05, Rule kRule, bool kCodes>
TENDON_DEVICE void compute(const LoopArgs& args, const Previous<kRule>& previous, uint32_t shared) {
  wait_for_producers();
  Block t(args, shared);
  unsigned char* const exchange = args.exchange;
  float x_t = 0.0F;  // of threads 0–2, see velocity_stage
  Given<kRule> given;
  if (t.thread < kMaxRows / 4) {
    const int row = t.block / kActionDim + 4 * t.thread;
    if (row < args.horizon) {
      x_t = load_constant(args.noise + row * kActionDim + t.block % kActionDim);
      given.load(args, previous, row * kActionDim + t.block % kActionDim);
    }
  }
  uint32_t chunk = 0;
  int index = 0;  // layers done
#pragma unroll 1
  for (int step = 0; step < args.steps; ++step) {
    t.next_stage(exchange);
    const float* gains = args.gains + step * args.gain_stride;  // of the norm that comes next
    token_stage<kPi05>(t, step, gains, exchange);
#pragma unroll 1
    for (int layer = 0; layer < args.layers; ++layer, ++index) {
      unsigned char* const set = exchange + (index & 1) * Exchange::kSet;
      unsigned char* const other = exchange + ((index & 1) ^ 1) * Exchange::kSet;
      t.next_stage(exchange);
      const float* const scales = kCodes ? args.scales + layer * kLayerScales : nullptr;
      qkv_stage<kCodes>(t, chunk, layer == 0 ? exchange + Exchange::kTokens : set + Exchange::kX,
                        shift_of<kPi05>(args, args.qkv_shift, step, layer, kQkvWidth), scales, set + Exchange::kQkv);
      chunk += kQkvChunks;
      // Every block has read the layer before to its end: its part of x has come.
      if (index > 0) {
        make_empty(other + Exchange::kFirstEnd, Exchange::kSet - Exchange::kFirstEnd, t.block, t.thread);
      }
      t.next_stage(exchange);
      attention_stage(t, chunk, set + Exchange::kQkv, set + Exchange::kPartial, set + Exchange::kPartialSums);
      chunk += kKvChunks;
      t.next_stage(exchange);
      combine_stage(t, set + Exchange::kPartial, set + Exchange::kPartialSums, set + Exchange::kAttended);
      t.next_stage(exchange);
      output_stage<false, kCodes>(t, chunk, set + Exchange::kAttended, gate_of<kPi05>(args, step, 2 * layer),
                                  gains += kWidth, scales, set + Exchange::kAfterAttention);
      chunk += kOutChunks;
      t.next_stage(exchange);
      gate_up_stage<kCodes>(t, chunk, set + Exchange::kAfterAttention,
                            shift_of<kPi05>(args, args.gate_up_shift, step, layer, 2 * kMlp), scales,
                            set + Exchange::kHidden);
      chunk += kGateUpChunks;
      // Every block has added o to its residual, so nobody reads this layer's first half any more, nor what stands in
      // front of the first layer.
      make_empty(set, Exchange::kFirstEnd, t.block, t.thread);
      if (layer == 0) make_empty(exchange + Exchange::kTokens, Exchange::kBytes - Exchange::kTokens, t.block, t.thread);
      t.next_stage(exchange);
      output_stage<true, kCodes>(t, chunk, set + Exchange::kHidden, gate_of<kPi05>(args, step, 2 * layer + 1),
                                 gains += kWidth, scales, other + Exchange::kX);
      chunk += kDownChunks;
      ++t.layer_parity;
    }
    t.next_stage(exchange);
    velocity_stage<kPi05>(t, previous, given, step, exchange + (index & 1) * Exchange::kSet + Exchange::kX, x_t,
                          exchange);
  }
}

template <bool kPi05, Rule kRule, bool kCodes>
__global__ __launch_bounds__(kLaunched, 1) void loop_kernel(const __grid_constant__ LoopArgs args,
                                                            const __grid_constant__ Previous<kRule> previous) {
#if __CUDA_ARCH__ >= 900  // elsewhere it is never launched: fits_card()
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = shared_address(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) barrier_init(shared + SharedLayout::kBarriers + 8 * i, 1);
    for (int i = 0; i < SharedLayout::kSlots; ++i) {
      barrier_init(shared + SharedLayout::kFull + 8 * i, 1);
      barrier_init(shared + SharedLayout::kFree + 8 * i, kFragments);
    }
  }
  barrier_init_fence();
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x >= kThreads) {
    give_registers<40>();
    stream_chunks<SharedLayout>(
        {.weights = args.weights + size_t{blockIdx.x} * kWeightChunks * weight_chunk_bytes(kCodes),
         .keys = args.keys + size_t{blockIdx.x % kParts} * kKvChunks * kChunkBytes,
         .weight_chunk_bytes = weight_chunk_bytes(kCodes),
         .layer_weight_bytes = layer_weight_bytes(kCodes),
         .layer_key_bytes = kLayerKvBytes,
         .before_keys = kQkvChunks,
         .keys_of_layer = kKvChunks,
         .of_layer = kLayerChunks,
         .layers = args.layers,
         .steps = args.steps},
        shared, static_cast<int>(threadIdx.x) - kThreads);
    __syncwarp();
  } else {
    take_registers<224>();
    compute<kPi05, kRule, kCodes>(args, previous, shared);
  }
  cluster_arrive();  // the neighbour may still send
  cluster_wait();
#endif
}

template <bool kPi05, Rule kRule, bool kCodes>
int blocks_that_fit() {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kBlocks);
  config.blockDim = dim3(kLaunched);
  config.dynamicSmemBytes = SharedLayout::kBytes;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {2, 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  cudaFuncAttributes code{};
  if (cudaFuncGetAttributes(&code, loop_kernel<kPi05, kRule, kCodes>) != cudaSuccess || code.ptxVersion < 90 ||
      cudaFuncSetAttribute(loop_kernel<kPi05, kRule, kCodes>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(SharedLayout::kBytes)) != cudaSuccess ||
      cudaOccupancyMaxActiveClusters(&clusters, loop_kernel<kPi05, kRule, kCodes>, &config) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return 2 * clusters;
}

template <Rule kRule>
bool fits() {
  return blocks_that_fit<false, kRule, false>() >= kBlocks && blocks_that_fit<true, kRule, false>() >= kBlocks &&
         blocks_that_fit<false, kRule, true>() >= kBlocks && blocks_that_fit<true, kRule, true>() >= kBlocks;
}

}  // namespace

bool fits_card() { return fits<Rule::kNone>() && fits<Rule::kGuided>() && fits<Rule::kInpaint>(); }

template <Rule kRule>
void launch_loop(const LoopArgs& args, const Previous<kRule>& previous, bool pi05, Stream stream) {
  const LaunchShape shape{.grid = dim3(kBlocks),
                          .block = dim3(kLaunched),
                          .shared_bytes = SharedLayout::kBytes,
                          .stream = stream,
                          .overlaps = true,
                          .cluster = 2};
  const auto run = [&]<bool kPi05, bool kCodes>() { launch<loop_kernel<kPi05, kRule, kCodes>>(shape, args, previous); };
  const bool codes = args.scales != nullptr;
  if (pi05) {
    codes ? run.template operator()<true, true>() : run.template operator()<true, false>();
  } else {
    codes ? run.template operator()<false, true>() : run.template operator()<false, false>();
  }
}
template void launch_loop(const LoopArgs&, const Previous<Rule::kNone>&, bool, Stream);
template void launch_loop(const LoopArgs&, const Previous<Rule::kGuided>&, bool, Stream);
template void launch_loop(const LoopArgs&, const Previous<Rule::kInpaint>&, bool, Stream);

}  // namespace tendon::gpu::denoise
