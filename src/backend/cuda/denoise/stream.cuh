// The warp of a block of the persistent denoise kernels that streams weights and cached keys through the ring in shared
// memory, far ahead of the warps that compute.
#pragma once

#include "backend/cuda/denoise/network.h"
#include "backend/cuda/device/hopper.cuh"

namespace tendon::gpu::denoise {

using namespace hopper;

// Chunks in flight at most: what is under way delays every message between blocks.
constexpr int kInFlight = 3;

// What a block streams: in every layer `of_layer` chunks, all weights but for `keys_of_layer` ones of keys and values
// behind the first `before_keys`.
struct ChunkStream {
  const unsigned char *weights, *keys;  // of the block, in the first layer
  unsigned weight_chunk_bytes;          // kChunkBytes, or less where weights are codes
  size_t layer_weight_bytes, layer_key_bytes;
  int before_keys, keys_of_layer, of_layer;  // of_layer is even
  int layers, steps;
};

// Two lanes of one warp, each every other chunk. Shared: where ring and barriers lie. The first weights are asked for
// before the kernels in front, which make the keys, have ended.
template <class Shared>
TENDON_DEVICE void stream_chunks(const ChunkStream& s, uint32_t shared, int lane) {
  if (lane >= 2) return;
  constexpr int kSlots = Shared::kSlots;
  const uint64_t once = policy_evict_first();
  const uint64_t again = policy_evict_last();  // keys and values come again in the next step
  const int total = s.steps * s.layers * s.of_layer;
  int slot = lane;
  uint32_t slot_parity = 1;  // of the slot's emptiness: free at first
  int waited_slot = (lane - kInFlight + 64 * kSlots) % kSlots;
  uint32_t waited_parity = 0;
  int in_layer = lane;
  int layer = 0;
  for (int number = lane; number < total; number += 2) {
    const bool is_keys = in_layer >= s.before_keys && in_layer < s.before_keys + s.keys_of_layer;
    const int weight_chunk = in_layer < s.before_keys ? in_layer : in_layer - s.keys_of_layer;
    const unsigned char* const from =
        is_keys
            ? s.keys + layer * s.layer_key_bytes + size_t{static_cast<unsigned>(in_layer - s.before_keys)} * kChunkBytes
            : s.weights + layer * s.layer_weight_bytes +
                  size_t{static_cast<unsigned>(weight_chunk)} * s.weight_chunk_bytes;
    const unsigned bytes = is_keys ? kChunkBytes : s.weight_chunk_bytes;
    if (number < s.of_layer && is_keys) wait_for_producers();
    barrier_wait(shared + Shared::kFree + 8 * slot, slot_parity);
    if (number >= kInFlight) barrier_wait(shared + Shared::kFull + 8 * waited_slot, waited_parity);
    waited_slot += 2;
    if (waited_slot >= kSlots) {
      waited_slot -= kSlots;
      if (number >= kInFlight) waited_parity ^= 1;
    }
    const uint32_t full = shared + Shared::kFull + 8 * slot;
    barrier_expect(full, bytes);
    bulk_load(shared + Shared::kRing + slot * kChunkBytes, from, bytes, full, is_keys ? again : once);
    slot += 2;
    if (slot >= kSlots) {
      slot -= kSlots;
      slot_parity ^= 1;
    }
    in_layer += 2;
    if (in_layer >= s.of_layer) {
      in_layer -= s.of_layer;
      if (++layer == s.layers) layer = 0;
    }
  }
}

}  // namespace tendon::gpu::denoise
