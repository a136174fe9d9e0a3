// Host tensors into one block of device memory, as fast as the connection allows.
#pragma once

#include <cstddef>
#include <span>

#include "backend/backend.h"
#include "base/tensor.h"

namespace tendon {

// 32 MB take 0.6 ms at 55 GB/s, long beside starting the threads, and pin no more memory than any machine has.
inline constexpr size_t kUploadWindowBytes = size_t{32} << 20;

// A tensor and where in the block it goes.
struct UploadPiece {
  Tensor host;                 // contiguous; f32, bf16 or f16
  DType dtype = DType::kBf16;  // as which it is stored there: bf16 or f32
  size_t offset = 0;           // bytes from the start of the block, a multiple of 4
  size_t bytes() const { return static_cast<size_t>(host.elements()) * dtype_bytes(dtype); }
};

// Two windows of page-locked memory in turn: all threads fill one, converting on the way, while the other is copied.
// `pieces` are sorted by offset and do not overlap. Bytes between two pieces that lie at most 256 apart are not kept.
// Returns when all is there. Throws Error(kDevice) when a copy fails or memory for the windows is short; nothing is
// under way then. `window_bytes` is a multiple of 4.
void upload_pieces(Backend& backend, void* block, std::span<const UploadPiece> pieces,
                   size_t window_bytes = kUploadWindowBytes);

}  // namespace tendon
