// Matrix products through hipBLASLt, opened at run time: the program starts without it.
#pragma once

#include <memory>
#include <string>

#include "backend/gpu/library_gemm.h"
#include "backend/gpu/runtime.h"

namespace tendon::hip {

// Null when the library cannot be opened; why_not then says what was tried. Takes its workspace from the runtime, which
// must outlive it, and makes the library's handle at once: while a stream is being captured neither is possible. Throws
// Error(kDevice) when the library is there and does not work.
std::unique_ptr<gpu::LibraryGemm> open_hipblaslt(gpu::Runtime& runtime, std::string& why_not);

}  // namespace tendon::hip
