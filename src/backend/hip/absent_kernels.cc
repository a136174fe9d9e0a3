// Kernels of kernels.h that have no version for AMD cards: the operations take other kernels instead.
#include "backend/gpu/kernels.h"
#include "base/check.h"

namespace tendon::gpu {

bool takes_attention_cluster(const Attention&) { return false; }
void launch_attention_cluster(const Attention&, Stream) { throw_device("AMD cards have no clusters of blocks"); }

}  // namespace tendon::gpu
