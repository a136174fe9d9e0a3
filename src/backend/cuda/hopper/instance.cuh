// From a tile's type to what the host sees of it.
#pragma once

#include "backend/cuda/hopper/tile.cuh"
#include "backend/cuda/hopper/tiles.h"

namespace tendon::gpu::hopper {

template <class T>
int clusters_at_once() {
  allow_shared<tile_kernel<T>>(T::kSharedBytes);
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
  require(cudaOccupancyMaxActiveClusters(&clusters, tile_kernel<T>, &config), "asking how many clusters run at once");
  return clusters;
}

template <class T>
void launch_tile(const TileMaps& maps, const TileArgs& args, int clusters, Stream stream) {
  launch<tile_kernel<T>>({.grid = static_cast<unsigned>(clusters * T::kCluster),
                          .block = T::kThreads,
                          .shared_bytes = T::kSharedBytes,
                          .stream = stream,
                          .overlaps = true,
                          .cluster = T::kCluster},
                         maps, args);
}

template <class Shape, Tail kTail, class Result = Bf16>
constexpr TileInstance instance() {
  using T = TailedTile<Shape, kTail, Result>;
  return {{T::kWeights, T::kTokens, T::kStages, T::kClusterWeights, T::kClusterTokens, T::kParts},
          T::kBoxTokens,
          launch_tile<T>,
          clusters_at_once<T>};
}

}  // namespace tendon::gpu::hopper
