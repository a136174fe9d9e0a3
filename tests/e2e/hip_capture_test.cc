// What a capture may not hold: the fake libamdhip64 refuses it as ROCm's runtime does, and the engine goes on without a
// graph. LD_LIBRARY_PATH leads to the fake.
#include <dlfcn.h>

#include <thread>

#include "command.h"

namespace tendon::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// hipError_t
constexpr int kIllegalState = 401;
constexpr int kUnsupported = 900;
constexpr int kInvalidated = 901;
constexpr int kImplicit = 906;
constexpr int kCapturedEvent = 907;

class HipCapture : public testing::Test {
 protected:
  template <class... Args>
  int call(const char* name, Args... args) {
    const auto function = reinterpret_cast<int (*)(Args...)>(dlsym(library_, name));
    EXPECT_NE(function, nullptr) << name;
    return function == nullptr ? -1 : function(args...);
  }
  void SetUp() override {
    ASSERT_NE(library_, nullptr) << dlerror();
    ASSERT_EQ(call("hipStreamCreateWithFlags", &stream_, 1U), 0);
    ASSERT_EQ(call("hipMalloc", &memory_, size_t{256}), 0);
  }
  void TearDown() override { EXPECT_EQ(call("hipFree", memory_), 0); }

  int begin() { return call("hipStreamBeginCapture", stream_, 1); }
  int work(void* stream) { return call("hipMemsetAsync", memory_, 0, size_t{256}, stream); }
  int end(void** graph) { return call("hipStreamEndCapture", stream_, graph); }
  int status() {
    int now = -1;
    EXPECT_EQ(call("hipStreamIsCapturing", stream_, &now), 0);
    return now;
  }
  // A capture with this call in the middle is lost, and the stream can be used and captured again.
  template <class F>
  void expect_spoilt(const char* name, int code, F&& intrude) {
    SCOPED_TRACE(name);
    ASSERT_EQ(begin(), 0);
    EXPECT_EQ(work(stream_), 0);
    EXPECT_EQ(status(), 1);
    EXPECT_EQ(intrude(), code);
    EXPECT_EQ(status(), 2);
    EXPECT_EQ(work(stream_), kInvalidated);
    void* graph = this;
    EXPECT_EQ(end(&graph), kInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(status(), 0);
    expect_graph([] {});
  }
  template <class F>
  void expect_graph(F&& in_between) {
    ASSERT_EQ(begin(), 0);
    EXPECT_EQ(work(stream_), 0);
    in_between();
    void* graph = nullptr;
    EXPECT_EQ(end(&graph), 0);
    void* executable = nullptr;
    EXPECT_EQ(call("hipGraphInstantiate", &executable, graph, static_cast<void**>(nullptr), static_cast<char*>(nullptr),
                   size_t{0}),
              0);
    EXPECT_EQ(call("hipGraphLaunch", executable, stream_), 0);
    EXPECT_EQ(call("hipStreamSynchronize", stream_), 0);
    EXPECT_EQ(call("hipGraphExecDestroy", executable), 0);
  }

  void* const library_ = dlopen("libamdhip64.so.7", RTLD_NOW | RTLD_LOCAL);
  void* stream_ = nullptr;
  void* memory_ = nullptr;
};

TEST_F(HipCapture, RefusesWhatRocmRefuses) {
  void* const none = nullptr;
  void* got = nullptr;
  expect_spoilt("hipMalloc", kUnsupported, [&] { return call("hipMalloc", &got, size_t{256}); });
  expect_spoilt("hipFree", kUnsupported, [&] { return call("hipFree", memory_); });
  expect_spoilt("hipHostMalloc", kUnsupported, [&] { return call("hipHostMalloc", &got, size_t{256}, 0U); });
  expect_spoilt("hipHostFree", kUnsupported, [&] { return call("hipHostFree", none); });
  expect_spoilt("hipStreamSynchronize", kUnsupported, [&] { return call("hipStreamSynchronize", stream_); });
  expect_spoilt("hipStreamQuery", kUnsupported, [&] { return call("hipStreamQuery", stream_); });
  expect_spoilt("hipDeviceSynchronize", kUnsupported, [&] { return call("hipDeviceSynchronize"); });
  expect_spoilt("hipModuleLoadData", kUnsupported,
                [&] { return call("hipModuleLoadData", &got, static_cast<const void*>(nullptr)); });
  expect_spoilt("hipModuleUnload", kUnsupported, [&] { return call("hipModuleUnload", none); });
  expect_spoilt("hipMemcpy", kImplicit,
                [&] { return call("hipMemcpy", memory_, static_cast<const void*>(memory_), size_t{8}, 3); });
  expect_spoilt("hipMemset", kImplicit, [&] { return call("hipMemset", memory_, 0, size_t{8}); });
  expect_spoilt("work on the legacy stream", kImplicit, [&] { return work(nullptr); });
}

TEST_F(HipCapture, RefusesQuestionsToItsEvents) {
  void* event = nullptr;
  ASSERT_EQ(call("hipEventCreate", &event), 0);
  ASSERT_EQ(call("hipEventRecord", event, stream_), 0);
  // An event from before the capture is none of it.
  expect_graph([&] { EXPECT_EQ(call("hipEventQuery", event), 0); });
  for (const char* question : {"hipEventQuery", "hipEventSynchronize"}) {
    expect_spoilt(question, kCapturedEvent, [&] {
      EXPECT_EQ(call("hipEventRecord", event, stream_), 0);
      return call(question, event);
    });
  }
  EXPECT_EQ(call("hipEventDestroy", event), 0);
}

TEST_F(HipCapture, OtherThreadsMayAllocateButNotWaitForTheCard) {
  const auto elsewhere = [](auto&& f) {
    int code = -1;
    std::thread([&] { code = f(); }).join();
    return code;
  };
  void* other = nullptr;
  expect_graph([&] { EXPECT_EQ(elsewhere([&] { return call("hipMalloc", &other, size_t{256}); }), 0); });
  EXPECT_EQ(call("hipFree", other), 0);
  expect_spoilt("hipDeviceSynchronize", kUnsupported,
                [&] { return elsewhere([&] { return call("hipDeviceSynchronize"); }); });
  expect_spoilt("hipMemset", kImplicit,
                [&] { return elsewhere([&] { return call("hipMemset", memory_, 0, size_t{8}); }); });
}

TEST_F(HipCapture, IsNotBegunTwice) {
  expect_graph([&] { EXPECT_EQ(begin(), kIllegalState); });
}

// --- the engine, when somebody makes such a call while it captures
// ----------------------------------------------------

class HipIntruder : public testing::TestWithParam<const char*> {};

TEST_P(HipIntruder, CostsTheGraphAndNothingElse) {
  const Variable fake("TENDON_FAKE_HIP", std::string("in-capture=") + GetParam());
  const Result result =
      tendon({"check", "--backend", "hip", "--checkpoint", "synthetic:pi0-tiny", "--steps", "1", "--precision", "f32"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("a capture that was spoilt"), HasSubstr("same numbers")));
}
INSTANTIATE_TEST_SUITE_P(Every, HipIntruder,
                         testing::Values("hipMalloc", "hipFree", "hipHostMalloc", "hipHostFree", "hipMemcpy",
                                         "hipMemset", "hipStreamSynchronize", "hipStreamQuery", "hipDeviceSynchronize",
                                         "hipEventQuery", "hipEventSynchronize", "hipModuleLoadData", "hipModuleUnload",
                                         "legacy-stream"));

}  // namespace
}  // namespace tendon::test
