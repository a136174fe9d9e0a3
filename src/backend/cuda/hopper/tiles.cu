// The tiles that exist (tile.cuh has the kernel).
#include "backend/cuda/hopper/tile.cuh"
#include "backend/cuda/hopper/tiles.h"

namespace tendon::gpu::hopper {
namespace {

template <class T, bool kGateUp>
int clusters_at_once() {
  require(cudaFuncSetAttribute(tile_kernel<T, kGateUp>, cudaFuncAttributeMaxDynamicSharedMemorySize, T::kSharedBytes),
          "raising a kernel's shared memory");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {T::kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = T::kCluster;
  config.blockDim = T::kThreads;
  config.dynamicSmemBytes = T::kSharedBytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t status = cudaOccupancyMaxActiveClusters(&clusters, tile_kernel<T, kGateUp>, &config);
  require(status, "asking for a kernel's clusters");
  return clusters;
}

template <class T>
constexpr TileInstance instance() {
  return {{T::kWeights, T::kTokens, T::kStages, T::kClusterWeights, T::kClusterTokens, T::kParts},
          [](bool gate_up, const CUtensorMap& weights, const CUtensorMap& tokens, const TileArgs& args, int clusters,
             Stream stream) {
            const LaunchShape shape{.grid = static_cast<unsigned>(clusters * T::kCluster),
                                    .block = T::kThreads,
                                    .shared_bytes = T::kSharedBytes,
                                    .stream = stream,
                                    .overlaps = true,
                                    .cluster = T::kCluster};
            gate_up ? launch<tile_kernel<T, true>>(shape, weights, tokens, args)
                    : launch<tile_kernel<T, false>>(shape, weights, tokens, args);
          },
          [](bool gate_up) { return gate_up ? clusters_at_once<T, true>() : clusters_at_once<T, false>(); }};
}

const TileInstance kInstances[] = {
    instance<WgmmaTile<2, 2, 200, 3, 1, 2>>(),
};

}  // namespace

std::span<const TileInstance> tile_instances() { return kInstances; }

}  // namespace tendon::gpu::hopper
