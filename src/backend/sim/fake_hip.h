// What the parts of the fake libamdhip64 share: its one driver, and the answers that are errors.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "backend/sim/named_kernels.h"
#include "backend/sim/sim_runtime.h"

#define FAKE extern "C" __attribute__((visibility("default")))

namespace tendon::sim {

// hipError_t
constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kInvalidConfiguration = 9;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr int kNoBinaryForGpu = 209;
constexpr int kInvalidHandle = 400;
constexpr int kIllegalState = 401;
constexpr int kNotFound = 500;
constexpr int kLaunchFailure = 719;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureInvalidated = 901;
constexpr int kCaptureImplicit = 906;
constexpr int kCapturedEvent = 907;

struct Driver {
  Driver();  // from the environment variable TENDON_FAKE_HIP
  gpu::Runtime& open();
  size_t shared_bytes() const { return architecture == 950 ? size_t{160} << 10 : size_t{64} << 10; }
  bool captures_here() const { return capturing && capturing_thread == std::this_thread::get_id(); }

  SimOptions options;
  int architecture = 942, count = 1;
  std::string intruder;  // a function that somebody calls in the middle of every capture
  std::unique_ptr<gpu::Runtime> card;
  std::map<std::string, const NamedKernel*> kernels;  // by name; null: two have this name

  bool capturing = false, lost = false;  // lost: a call in between spoilt it
  std::thread::id capturing_thread;
  int recorded = 0;  // pieces of work of the capture

  int last_code = kSuccess;
  std::string last_words;
};
Driver& driver();

int failed(int code, std::string words);

// What a capture does to other calls, as ROCm's runtime has it in thread-local mode (clr, hipamd/src/hip_internal.hpp
// and hip_event.cpp, ROCm 7): a call that may not be made spoils the capture, and answers with
//   900  in the thread that captures: memory, waiting for a stream, loading and unloading of kernels; in any thread:
//        waiting for the card
//   906  in any thread: what waits for the legacy stream, as copies do that are not asynchronous, and work on it. (The
//        runtime lets work on the legacy stream pass beside a non-blocking stream; here it never does.)
//   907  a question to, or waiting for, an event that was recorded in the capture
// 0 when nothing is being captured.
int refused_in_capture(const char* function);
int refused_beside_capture(const char* function);

template <class F>
int guarded(F&& f) {
  try {
    return f(driver().open());
  } catch (const std::exception& error) {
    const std::string words = error.what();
    return failed(words.find("invalid") != std::string::npos ? kCaptureInvalidated : kLaunchFailure, words);
  }
}

// Makes the call that was ordered, when it is time.
void intrude();

// Work on a stream: run, or recorded by a capture. Refused on the legacy stream and in a spoilt capture.
template <class F>
int enqueue(const char* function, void* stream, F&& work) {
  if (stream == nullptr) {
    if (const int code = refused_beside_capture(function)) return code;
  }
  return guarded([&](gpu::Runtime& card) {
    if (stream != nullptr && stream != card.stream()) return failed(kInvalidHandle, "this stream does not exist");
    if (driver().captures_here()) {
      intrude();
      if (driver().lost) return failed(kCaptureInvalidated, std::string(function) + " in a capture that was spoilt");
      ++driver().recorded;
    }
    return work(card);
  });
}

}  // namespace tendon::sim
