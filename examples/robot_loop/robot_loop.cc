// A robot's control loop on tendon_client: a control thread that never waits, and a thread that asks for chunks.
//
//   robot_loop ws://127.0.0.1:8000 [SECONDS] [HZ]      (DROID keys: two cameras, seven joints, a gripper)
//
// The robot here is a simulated one that moves a little towards each action. Replace SimulatedRobot.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include "tendon/client.hpp"

namespace {

using tendon::ActionQueue;
using Clock = ActionQueue::Clock;

class SimulatedRobot {
 public:
  tendon::PolicyRequest observe() const {
    const std::vector<uint8_t> rgb(3 * 224 * 224, 127);
    std::vector<double> joints(7);
    double gripper = 0;
    {
      const std::lock_guard lock(mutex_);
      joints = joints_;
      gripper = gripper_;
    }
    tendon::PolicyRequest request;
    request.picture("observation/exterior_image_1_left", rgb, 224, 224)
        .picture("observation/wrist_image_left", rgb, 224, 224)
        .numbers("observation/joint_position", joints)
        .numbers("observation/gripper_position", std::span(&gripper, 1))
        .prompt("pick up the cup");
    return request;
  }

  void apply(std::span<const double> action) {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < joints_.size(); ++i) joints_[i] += 0.001 * std::tanh(action[i]);
    gripper_ = action[7] > 0.5 ? 1 : 0;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<double> joints_ = std::vector<double>(7, 0.0);
  double gripper_ = 0;
};

// Asks for the next chunk while the last one is executed, until `stop`. With real-time chunking the new chunk goes on
// from the old one; the delay that is told to the server is the longest of the last calls.
void ask_for_chunks(const std::string& url, const SimulatedRobot& robot, ActionQueue& queue, Clock::duration period,
                    const std::atomic<bool>& stop, std::atomic<int>& chunks) {
  tendon::PolicyClient client(url, {.timeout_s = 10});
  int64_t delay = 0;
  while (!stop) {
    const Clock::time_point observed_at = Clock::now();
    tendon::PolicyRequest request = robot.observe();
    const auto in_use = queue.in_use(observed_at);
    if (client.continues_chunks() && in_use && in_use->executed < in_use->chunk.horizon) {
      const int64_t left = in_use->chunk.horizon - in_use->executed;
      request.continue_from(in_use->chunk, in_use->executed, std::min(delay, left));
    }
    tendon::PolicyReply reply = client.infer(request);
    const int64_t horizon = reply.horizon;
    queue.put(std::move(reply), observed_at);
    ++chunks;
    delay = std::max((Clock::now() - observed_at) / period + 1, delay - 1);
    // Half of the chunk is executed before the next is asked for.
    std::this_thread::sleep_until(observed_at + horizon / 2 * period);
  }
}

int run(const std::string& url, double seconds, double hz) {
  const auto period = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(1 / hz));
  SimulatedRobot robot;
  ActionQueue queue(period);
  std::atomic<bool> stop = false, failed = false;
  std::atomic<int> chunks = 0;
  std::thread asking([&] {
    try {
      ask_for_chunks(url, robot, queue, period, stop, chunks);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "robot_loop: %s\n", error.what());
      failed = stop = true;
    }
  });

  int steps = 0, executed = 0;
  Clock::time_point tick = Clock::now();
  const Clock::time_point end =
      tick + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  for (; tick < end && !stop; tick += period, ++steps) {
    std::this_thread::sleep_until(tick);
    const ActionQueue::Next next = queue.next(Clock::now());
    if (next.action.empty()) continue;  // the first chunk is not there yet: stand still
    robot.apply(next.action);           // a late reply: the last action is held
    ++executed;
  }
  stop = true;
  asking.join();
  std::printf("%d steps, %d with an action, %lld of them held, %d chunks\n", steps, executed,
              static_cast<long long>(queue.held_steps()), chunks.load());
  return failed || executed == 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 2 ? std::atof(argv[2]) : 5;
  const double hz = argc > 3 ? std::atof(argv[3]) : 15;
  if (argc < 2 || !(seconds > 0) || !(hz > 0)) {
    std::fprintf(stderr, "usage: robot_loop ws://HOST:PORT [SECONDS] [HZ]\n");
    return 2;
  }
  return run(argv[1], seconds, hz);
}
