// The functions of libamdhip64 that tendon calls, found at run time: the program starts without it. Declared here as
// AMD documents them, so that no header of ROCm is needed; those of HIP 5.2 and later, whose numbers have not changed.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

namespace tendon::hip {

using Error = int;  // hipError_t
constexpr Error kSuccess = 0;
constexpr Error kOutOfMemory = 2;
constexpr Error kNoDevice = 100;
constexpr Error kCaptureUnsupported = 900;  // the call is not allowed while a stream is being captured
constexpr Error kCaptureInvalidated = 901;  // an earlier call of this kind spoilt the capture

// hipDeviceAttribute_t
constexpr int kComputeMajor = 23, kComputeMinor = 61, kMultiprocessors = 63, kSharedBytesPerBlock = 74;
constexpr unsigned kStreamNonBlocking = 1;
constexpr int kCaptureThreadLocal = 1;
constexpr int kHostToDevice = 1, kDeviceToHost = 2;

using StreamHandle = struct ihipStream_t*;
using EventHandle = struct ihipEvent_t*;
using GraphHandle = struct ihipGraph*;
using ExecHandle = struct hipGraphExec*;
using ModuleHandle = struct ihipModule_t*;
using FunctionHandle = struct ihipModuleSymbol_t*;

// name, type; all must be there.
#define TENDON_HIP_FUNCTIONS(F)                                                                                     \
  F(hipGetDeviceCount, Error (*)(int* count))                                                                       \
  F(hipSetDevice, Error (*)(int device))                                                                            \
  F(hipDeviceGetName, Error (*)(char* name, int bytes, int device))                                                 \
  F(hipDeviceGetPCIBusId, Error (*)(char* text, int bytes, int device))                                             \
  F(hipDeviceGetAttribute, Error (*)(int* value, int attribute, int device))                                        \
  F(hipRuntimeGetVersion, Error (*)(int* version))                                                                  \
  F(hipDriverGetVersion, Error (*)(int* version))                                                                   \
  F(hipMemGetInfo, Error (*)(size_t * free, size_t * total))                                                        \
  F(hipGetLastError, Error (*)())                                                                                   \
  F(hipGetErrorName, const char* (*)(Error error))                                                                  \
  F(hipGetErrorString, const char* (*)(Error error))                                                                \
  F(hipMalloc, Error (*)(void** memory, size_t bytes))                                                              \
  F(hipFree, Error (*)(void* memory))                                                                               \
  F(hipHostMalloc, Error (*)(void** memory, size_t bytes, unsigned flags))                                          \
  F(hipHostFree, Error (*)(void* memory))                                                                           \
  F(hipMemcpyAsync, Error (*)(void* to, const void* from, size_t bytes, int kind, StreamHandle stream))             \
  F(hipMemsetAsync, Error (*)(void* memory, int value, size_t bytes, StreamHandle stream))                          \
  F(hipStreamCreateWithFlags, Error (*)(StreamHandle * stream, unsigned flags))                                     \
  F(hipStreamDestroy, Error (*)(StreamHandle stream))                                                               \
  F(hipStreamSynchronize, Error (*)(StreamHandle stream))                                                           \
  F(hipStreamBeginCapture, Error (*)(StreamHandle stream, int mode))                                                \
  F(hipStreamEndCapture, Error (*)(StreamHandle stream, GraphHandle * graph))                                       \
  F(hipStreamIsCapturing, Error (*)(StreamHandle stream, int* status))                                              \
  F(hipGraphInstantiate, Error (*)(ExecHandle * exec, GraphHandle graph, void** node, char* log, size_t log_bytes)) \
  F(hipGraphLaunch, Error (*)(ExecHandle exec, StreamHandle stream))                                                \
  F(hipGraphExecDestroy, Error (*)(ExecHandle exec))                                                                \
  F(hipGraphDestroy, Error (*)(GraphHandle graph))                                                                  \
  F(hipEventCreate, Error (*)(EventHandle * event))                                                                 \
  F(hipEventDestroy, Error (*)(EventHandle event))                                                                  \
  F(hipEventRecord, Error (*)(EventHandle event, StreamHandle stream))                                              \
  F(hipEventElapsedTime, Error (*)(float* ms, EventHandle from, EventHandle to))                                    \
  F(hipModuleLoadData, Error (*)(ModuleHandle * module, const void* image))                                         \
  F(hipModuleUnload, Error (*)(ModuleHandle module))                                                                \
  F(hipModuleGetFunction, Error (*)(FunctionHandle * function, ModuleHandle module, const char* name))              \
  F(hipModuleLaunchKernel, Error (*)(FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,    \
                                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,   \
                                     StreamHandle stream, void** parameters, void** extra))

struct Library {
  std::string file;  // "libamdhip64.so.6"
#define TENDON_HIP_MEMBER(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
  TENDON_HIP_FUNCTIONS(TENDON_HIP_MEMBER)
#undef TENDON_HIP_MEMBER
  Error (*hipGraphUpload)(ExecHandle exec, StreamHandle stream) = nullptr;  // since HIP 5.3; null before

  // Throws Error(kDevice) naming the call.
  void require(Error status, const char* what) const;
};

// The library, opened once for the process; null when there is none, or one that lacks a function: why_not then says
// what was tried.
const Library* library(std::string* why_not = nullptr);

}  // namespace tendon::hip
