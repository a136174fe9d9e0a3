#include "server/inference_queue.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace tendon {
namespace {

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of a loop that waits for another thread: leaves the core's means to its other half, but not the core.
void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#else
  std::this_thread::yield();
#endif
}

}  // namespace

Outcome outcome_of(const std::exception& error) {
  Outcome outcome;
  outcome.error = "internal error of the server; its log has the details.";
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    if (known->kind() == ErrorKind::kBadInput || known->kind() == ErrorKind::kBadUse) {
      outcome.failure = Failure::kBadRequest;
      outcome.error = known->what();
    } else if (known->kind() == ErrorKind::kDevice) {
      outcome.failure = Failure::kDevice;
      outcome.error = known->what();
    }
  } else if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    outcome.error = "the server is out of memory.";
  }
  return outcome;
}

bool InferenceQueue::has_cores_to_spare() {
  constexpr unsigned kEnough = 4;  // client, reader, worker, and one that does something else
  return std::thread::hardware_concurrency() >= kEnough;
}

InferenceQueue::InferenceQueue(Model& model, Metrics& metrics, double max_wait_us, bool stays_awake)
    : model_(model),
      metrics_(metrics),
      max_wait_us_(max_wait_us),
      stays_awake_(stays_awake),
      sizes_(model.batch_sizes()) {
  TENDON_CHECK(!sizes_.empty() && sizes_.front() == 1 && std::ranges::is_sorted(sizes_), "batch sizes");
}

void InferenceQueue::submit(std::unique_ptr<Job> job, std::shared_ptr<const std::atomic<bool>> cancelled, Done done) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(job), std::move(cancelled), std::move(done), now_us()});
    ++changes_;
  }
  changed_.notify_one();
}

bool InferenceQueue::is_empty() {
  const std::lock_guard lock(mutex_);
  return waiting_.empty();
}

void InferenceQueue::expect(double seconds) {
  if (!stays_awake_) return;
  {
    const std::lock_guard lock(mutex_);
    awake_until_us_ = now_us() + seconds * 1e6;
  }
  changed_.notify_one();
}

// Until something changes, or the time is over.
void InferenceQueue::stay_awake(std::unique_lock<std::mutex>& lock) {
  const uint64_t changes = changes_.load();
  const double until_us = std::exchange(awake_until_us_, 0);
  lock.unlock();
  while (changes_.load(std::memory_order_relaxed) == changes && now_us() < until_us) relax();
  lock.lock();
}

void InferenceQueue::stop(bool drop_waiting) {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    ++changes_;
    if (drop_waiting) waiting_.clear();
  }
  changed_.notify_all();
}

size_t InferenceQueue::waiting_in_group(int64_t group) const {
  return static_cast<size_t>(std::ranges::count_if(waiting_, [&](const Entry& e) { return e.job->group == group; }));
}

// Waits for a job; then takes it and the others of its group, as many as a batch size allows. Empty: stopped.
std::vector<InferenceQueue::Entry> InferenceQueue::next_batch() {
  std::unique_lock lock(mutex_);
  const auto drop_cancelled = [&] { std::erase_if(waiting_, [](const Entry& e) { return e.cancelled->load(); }); };
  drop_cancelled();
  if (waiting_.empty() && !stopped_) {
    lock.unlock();
    model_.idle();
    lock.lock();
  }
  for (;;) {
    changed_.wait(lock, [&] { return stopped_ || !waiting_.empty() || awake_until_us_ > 0; });
    if (!stopped_ && waiting_.empty()) stay_awake(lock);
    drop_cancelled();
    if (!waiting_.empty()) break;
    if (stopped_) return {};
  }
  if (max_wait_us_ > 0 && sizes_.back() > 1) {
    const int64_t group = waiting_.front().job->group;
    changed_.wait_for(lock, std::chrono::duration<double, std::micro>(max_wait_us_),
                      [&] { return stopped_ || waiting_in_group(group) >= sizes_.back(); });
    drop_cancelled();
    if (waiting_.empty()) return {};
  }
  const int64_t group = waiting_.front().job->group;
  const size_t size = *std::prev(std::ranges::upper_bound(sizes_, waiting_in_group(group)));
  std::vector<Entry> batch;
  for (auto entry = waiting_.begin(); entry != waiting_.end() && batch.size() < size;) {
    if (entry->job->group != group) {
      ++entry;
      continue;
    }
    batch.push_back(std::move(*entry));
    entry = waiting_.erase(entry);
  }
  return batch;
}

void InferenceQueue::run_batch(std::vector<Entry> batch) {
  std::vector<Job*> jobs;
  for (const Entry& entry : batch) jobs.push_back(entry.job.get());
  const double start = now_us();
  std::vector<Outcome> outcomes;
  try {
    outcomes = model_.infer(jobs);
    TENDON_CHECK(outcomes.size() == jobs.size(), "{} outcomes of {} jobs", outcomes.size(), jobs.size());
  } catch (const std::exception& error) {
    outcomes.assign(jobs.size(), outcome_of(error));
  }
  const double infer_us = now_us() - start;
  metrics_.ran_batch(std::ssize(batch));
  for (size_t i = 0; i < batch.size(); ++i) {
    outcomes[i].queue_us = start - batch[i].submitted_us;
    outcomes[i].infer_us = jobs[i]->prepare_us + infer_us;
    if (!batch[i].cancelled->load()) batch[i].done(std::move(outcomes[i]));
  }
}

void InferenceQueue::run() {
  for (;;) {
    std::vector<Entry> batch = next_batch();
    if (!batch.empty()) {
      run_batch(std::move(batch));
      continue;
    }
    const std::lock_guard lock(mutex_);
    if (stopped_ && waiting_.empty()) return;
  }
}

}  // namespace tendon
