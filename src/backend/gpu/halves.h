// Runs in halves: two graphs, and the two streams that all of a backend's executables put them on.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "backend/gpu/runtime.h"

namespace tendon::gpu {

// Made when first asked for.
class StreamsOfHalves {
 public:
  explicit StreamsOfHalves(Runtime& runtime) : runtime_(runtime) {}
  // Null where the card has one stream.
  HalfStreams* get(PreferredHalf preferred) {
    std::unique_ptr<HalfStreams>& streams = streams_[preferred];
    if (streams == nullptr) streams = runtime_.make_half_streams(preferred);
    return streams.get();
  }

 private:
  Runtime& runtime_;
  std::map<PreferredHalf, std::unique_ptr<HalfStreams>> streams_;
};

// One run, again and again.
class Halves {
 public:
  Halves(Runtime& runtime, HalfStreams& streams, std::unique_ptr<Graph> front, std::unique_ptr<Graph> back)
      : streams_(streams),
        front_(std::move(front)),
        back_(std::move(back)),
        front_end_(runtime.make_event()),
        back_end_(runtime.make_event()) {}
  // Both throw Error(kDevice), as HalfStreams does.
  void start() { streams_.launch(*front_, *back_, *front_end_, *back_end_); }
  void finish() { streams_.wait(*back_end_); }

 private:
  HalfStreams& streams_;
  std::unique_ptr<Graph> front_, back_;
  std::unique_ptr<Event> front_end_, back_end_;
};

}  // namespace tendon::gpu
