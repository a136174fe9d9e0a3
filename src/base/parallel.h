// Static work split over the OpenMP threads that the GEMM library uses too.
#pragma once

#include <algorithm>
#include <cstdint>

#include <omp.h>

namespace tendon {

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
#pragma omp parallel for schedule(static, 1) num_threads(static_cast <int>(threads))
  for (int64_t part = 0; part < threads; ++part) {
    const int64_t begin = count * part / threads;
    const int64_t end = count * (part + 1) / threads;
    if (begin < end) body(begin, end);
  }
}

}  // namespace tendon
