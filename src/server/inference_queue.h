// The one worker that runs the model, and the requests that wait for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "policy/policy.h"
#include "server/metrics.h"

namespace tendon {

// A request, decoded and ready to run.
class Job {
 public:
  virtual ~Job() = default;
  int64_t group = 0;      // only jobs of one group can share a batch
  double prepare_us = 0;  // decoding and preparing
  // Whether parts of the message are read while the job runs; who submits it then gives it a hold on the message.
  bool reads_message = false;
  std::shared_ptr<const std::byte[]> message;
};

// What became of a job: a chunk, or an error for the client.
struct Outcome {
  ActionChunk chunk;
  std::string error;  // empty: the chunk is the answer
  Failure failure = Failure::kInternal;
  int64_t draw = -1;    // number of the noise draw; -1: the request brought its own
  double queue_us = 0;  // from submit to the start of its batch
  double model_us = 0;  // its batch in the model
  double infer_us = 0;  // preparing, model and what follows, without waiting
};

// Work on one message while it is on its way.
class Intake {
 public:
  virtual ~Intake() = default;
  // Any thread, several at once: does what can be done with what has come so far.
  virtual void look(std::span<const std::byte> begun) noexcept = 0;
  // Returns when no thread is in look() any more; later calls of it do nothing.
  virtual void end() noexcept = 0;
};

// What the server serves.
class Model {
 public:
  virtual ~Model() = default;
  // For a message that takes a while to come; null: nothing can be done before it is whole.
  virtual std::shared_ptr<Intake> begin() { return nullptr; }
  // Called from I/O threads, several at once and while infer runs. `intake`: what begin() gave for this message, or
  // null. Throws Error(kBadInput) for the client.
  virtual std::unique_ptr<Job> prepare(std::span<const std::byte> message, Intake* intake) = 0;
  // Called from the worker only. Jobs of one group, at most as many as the largest batch size; one outcome for each.
  virtual std::vector<Outcome> infer(std::span<Job* const> batch) = 0;
  // How many jobs can run at once, ascending, beginning with 1.
  virtual std::vector<size_t> batch_sizes() const { return {1}; }
  // Called from the worker when nothing waits.
  virtual void idle() {}
};

// Outcome of an exception: what a client may see, and the kind for the counters. Internal errors name source files, so
// the client gets another text.
Outcome outcome_of(const std::exception& error);

// Jobs of one connection must be submitted one after the other; those of several run in the order of arrival, except
// that jobs which fit into a batch that begins are taken along.
class InferenceQueue {
 public:
  using Done = std::function<void(Outcome&&)>;

  // `max_wait_us`: how long a job waits for others to fill its batch. `stays_awake`: whether expect() does anything.
  InferenceQueue(Model& model, Metrics& metrics, double max_wait_us = 0, bool stays_awake = has_cores_to_spare());
  static bool has_cores_to_spare();

  // Any thread: a job may come within so many seconds. The worker, if it sleeps, wakes up and stays awake for so long:
  // waking up takes as long as a job's way through the server.
  void expect(double seconds);
  // Any thread: whether no job waits.
  bool is_empty();
  // Any thread. `done` is called once, from the worker's thread; not if `cancelled` is true by the time it would run.
  void submit(std::unique_ptr<Job> job, std::shared_ptr<const std::atomic<bool>> cancelled, Done done);
  // Runs jobs on the calling thread until stop() was called and nothing waits.
  void run();
  // `drop_waiting`: jobs that have not begun are forgotten.
  void stop(bool drop_waiting = false);

 private:
  struct Entry {
    std::unique_ptr<Job> job;
    std::shared_ptr<const std::atomic<bool>> cancelled;
    Done done;
    double submitted_us = 0;
  };

  std::vector<Entry> next_batch();
  void stay_awake(std::unique_lock<std::mutex>& lock);
  void run_batch(std::vector<Entry> batch);
  size_t waiting_in_group(int64_t group) const;

  Model& model_;
  Metrics& metrics_;
  double max_wait_us_;
  bool stays_awake_;
  std::vector<size_t> sizes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> waiting_;
  bool stopped_ = false;
  double awake_until_us_ = 0;
  std::atomic<uint64_t> changes_ = 0;  // of what the worker waits for
};

}  // namespace tendon
