// The queue of a card's work, as host code sees it: no vendor header is needed to hand it on.
#pragma once

namespace tendon::gpu {

struct StreamHandle;  // never defined: the vendor's own stream, CUstream_st or hipStream_t
using Stream = StreamHandle*;

}  // namespace tendon::gpu
