// Frames through a FrameStream, two under way, for the tests of several backends.
#pragma once

#include <algorithm>

#include "engine/frame_stream.h"
#include "tiny.h"

namespace tendon::test {

using Chunks = std::vector<std::vector<float>>;

inline size_t values_of(const Engine& engine) {
  return static_cast<size_t>(engine.config().horizon * engine.config().action_dim);
}

// What the engine's ordinary calls give for the requests first, first + 1, ….
inline Chunks plain_calls(Engine& engine, int64_t first, int64_t count) {
  Chunks chunks;
  for (int64_t i = 0; i < count; ++i) chunks.push_back(infer(engine, Request(engine.config(), first + i)));
  return chunks;
}

// Begins a frame whose memory is overwritten at once.
inline Status submit(FrameStream& stream, const Engine& engine, int64_t number, size_t cameras = 3,
                     int64_t prompt = 5) {
  Request request(engine.config(), number, cameras, prompt);
  const Sample sample = request.sample();
  Status status = stream.submit({&sample, 1});
  for (std::vector<uint8_t>& image : request.images) std::ranges::fill(image, uint8_t{255});
  std::ranges::fill(request.tokens, 0);
  std::ranges::fill(request.state, 9.0F);
  std::ranges::fill(request.noise, 9.0F);
  return status;
}

inline FrameStream open_stream(Engine& engine, const StreamOptions& options = {}) {
  const Request like(engine.config(), 0);
  const Sample sample = like.sample();
  return {engine, {&sample, 1}, options};
}

// The same as plain_calls through the stream; fails the test unless every call is ok.
inline Chunks streamed(FrameStream& stream, const Engine& engine, int64_t first, int64_t count) {
  Chunks chunks;
  const auto wait = [&] {
    const Status status = stream.wait(chunks.emplace_back(values_of(engine)));
    EXPECT_TRUE(status.is_ok()) << status.message();
  };
  for (int64_t i = 0; i < count; ++i) {
    if (stream.frames_under_way() == FrameStream::kDepth) wait();
    const Status status = submit(stream, engine, first + i);
    EXPECT_TRUE(status.is_ok()) << status.message();
  }
  while (stream.frames_under_way() > 0) wait();
  return chunks;
}

inline void expect_same_chunks(const Chunks& got, const Chunks& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bytes(got[i], expected[i])) << "frame " << i;
}

}  // namespace tendon::test
