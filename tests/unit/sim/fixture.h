// Kernels on the simulated card, in every order of threads.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "backend/gpu/device/cluster.cuh"
#include "backend/gpu/device/prelude.cuh"
#include "backend/sim/sim_runtime.h"
#include "base/check.h"

namespace tendon::test {

using gpu::Runtime;

// "" or the message of the Error(kDevice) that f throws.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    return error.what();
  }
  return "";
}

class Simt : public testing::TestWithParam<simt::Order> {
 protected:
  Simt() : runtime_(sim::make_sim_runtime({.order = GetParam(), .seed = 7})) {}

  gpu::Stream stream() const { return runtime_->stream(); }
  void wait() { runtime_->synchronize(); }

  // Of launching a kernel and waiting for it.
  template <auto kKernel, class... Args>
  std::string failure(gpu::LaunchShape shape, const Args&... args) {
    shape.stream = stream();
    return refusal([&] {
      gpu::launch<kKernel>(shape, args...);
      wait();
    });
  }

  std::unique_ptr<Runtime> runtime_;
};

inline std::string order_name(const testing::TestParamInfo<simt::Order>& info) {
  return info.param == simt::Order::kForward ? "forward" : info.param == simt::Order::kReverse ? "reverse" : "shuffled";
}
#define TENDON_ALL_ORDERS(suite)                                                                                  \
  INSTANTIATE_TEST_SUITE_P(Orders, suite,                                                                         \
                           testing::Values(simt::Order::kForward, simt::Order::kReverse, simt::Order::kShuffled), \
                           order_name)

inline int count_nan(const std::vector<float>& values) {
  int count = 0;
  for (const float value : values) count += std::isnan(value) ? 1 : 0;
  return count;
}

}  // namespace tendon::test
