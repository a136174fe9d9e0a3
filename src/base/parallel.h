// Static work split over the OpenMP threads that the GEMM library uses too.
#pragma once

#include <algorithm>
#include <cstdint>

#include <omp.h>

#ifdef __SANITIZE_THREAD__
#include <thread>
#include <vector>
#endif

namespace tendon {

#ifdef __SANITIZE_THREAD__
// body(thread) on each of `threads` threads. ThreadSanitizer does not see the barriers of OpenMP's library, so every
// one of its regions would look like a race; what it shall see is whether the bodies race.
template <class Body>
void run_threads(int threads, const Body& body) {
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back([&body, thread] { body(thread); });
  body(0);
  for (std::thread& other : others) other.join();
}
#endif

// Calls body(begin, end) on disjoint ranges that cover 0..count. `grain` is the least work worth a thread. The split
// depends only on count, grain and the number of threads, and bodies must not depend on it.
template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  const int64_t threads =
      std::clamp<int64_t>(count / std::max<int64_t>(grain, 1), 1, static_cast<int64_t>(omp_get_max_threads()));
  if (threads == 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  const auto run = [&](int64_t part) {
    const int64_t begin = count * part / threads;
    const int64_t end = count * (part + 1) / threads;
    if (begin < end) body(begin, end);
  };
#ifdef __SANITIZE_THREAD__
  run_threads(static_cast<int>(threads), run);
#else
#pragma omp parallel for schedule(static, 1) num_threads(static_cast <int>(threads))
  for (int64_t part = 0; part < threads; ++part) run(part);
#endif
}

}  // namespace tendon
