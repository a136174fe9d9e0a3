#include "server/run_here.h"

#include <future>
#include <thread>

#include <gtest/gtest.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>

namespace tendon {
namespace {

namespace asio = boost::asio;

class RunHereTest : public testing::Test {
 protected:
  RunHereTest() : thread_([this] { io_.run(); }) {}
  ~RunHereTest() override {
    work_.reset();
    thread_.join();
  }
  // Which thread runs what is posted, seen from the test's.
  std::future<std::thread::id> post() {
    auto promise = std::make_shared<std::promise<std::thread::id>>();
    asio::post(strand_, [promise] { promise->set_value(std::this_thread::get_id()); });
    return promise->get_future();
  }
  // Returns when the strand holds nothing: a function's result may be here before the strand has let go of it.
  void wait_until_idle() {
    std::promise<void> behind;
    asio::post(io_, [&] { behind.set_value(); });
    behind.get_future().wait();
  }

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  asio::any_io_executor strand_ = asio::make_strand(HereExecutor(io_.get_executor()));
  std::thread thread_;
};

TEST_F(RunHereTest, TheNextFunctionOfAnIdleStrand) {
  EXPECT_EQ(post().get(), thread_.get_id());
  wait_until_idle();
  {
    const RunHere here;
    EXPECT_EQ(post().get(), std::this_thread::get_id());
    EXPECT_EQ(post().get(), thread_.get_id()) << "one only";
  }
  { const RunHere unused; }
  EXPECT_EQ(post().get(), thread_.get_id());
}

TEST_F(RunHereTest, WhatItBeginsGoesOnElsewhere) {
  std::promise<std::thread::id> timer_thread, next_thread;
  asio::steady_timer timer(strand_);
  {
    const RunHere here;
    asio::post(strand_, [&] {
      timer.expires_after(std::chrono::milliseconds(1));
      timer.async_wait([&](const auto&) { timer_thread.set_value(std::this_thread::get_id()); });
      asio::post(strand_, [&] { next_thread.set_value(std::this_thread::get_id()); });
    });
  }
  EXPECT_EQ(timer_thread.get_future().get(), thread_.get_id());
  EXPECT_EQ(next_thread.get_future().get(), thread_.get_id());
}

TEST_F(RunHereTest, NothingOfABusyStrand) {
  std::promise<void> begun, go_on;
  asio::post(strand_, [&] {
    begun.set_value();
    go_on.get_future().wait();
  });
  begun.get_future().wait();
  std::future<std::thread::id> posted;
  {
    const RunHere here;
    posted = post();
  }
  go_on.set_value();
  EXPECT_EQ(posted.get(), thread_.get_id());
}

}  // namespace
}  // namespace tendon
