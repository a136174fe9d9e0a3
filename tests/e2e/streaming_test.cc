// Streams of frames where the host computes: order, bytes, and what is refused. Overlap: card_test.cc.
#include <gmock/gmock.h>

#include "../support/copying_backend.h"
#include "streamed.h"

namespace tendon::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class StreamTest : public testing::TestWithParam<const char*> {
 protected:
  StreamTest() : model_(load_tiny(data_dir() / GetParam())) {
    options_.steps = 2;
    engine_ = std::make_unique<Engine>(backend_, model_.config, model_.weights, options_);
  }
  Engine& engine() { return *engine_; }

  CopyingBackend backend_;
  LoadedModel model_;
  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(Tiny, StreamTest, testing::Values("tiny_pi0", "tiny_pi05"),
                         [](const testing::TestParamInfo<const char*>& test) { return std::string(test.param); });

TEST_P(StreamTest, FramesGetTheBytesOfPlainCallsInOrder) {
  const Chunks expected = plain_calls(engine(), 1, 5);
  EXPECT_FALSE(same_bytes(expected[0], expected[1]));
  FrameStream stream = open_stream(engine());
  EXPECT_FALSE(stream.overlaps());
  expect_same_chunks(streamed(stream, engine(), 1, 5), expected);
  const int made = backend_.allocations + backend_.host_allocations + backend_.prepared;
  expect_same_chunks(streamed(stream, engine(), 1, 5), expected);
  EXPECT_EQ(backend_.allocations + backend_.host_allocations + backend_.prepared, made);
  expect_same_chunks(plain_calls(engine(), 1, 5), expected);
}

TEST_P(StreamTest, TakesTwoFramesAndNoOrdinaryCallBesideThem) {
  const Chunks expected = plain_calls(engine(), 1, 3);
  FrameStream stream = open_stream(engine());
  FrameStream other = open_stream(engine());
  std::vector<float> actions(values_of(engine()));
  EXPECT_THAT(stream.wait(actions).message(), HasSubstr("no frame is under way"));

  ASSERT_TRUE(submit(stream, engine(), 1).is_ok());
  ASSERT_TRUE(submit(stream, engine(), 2).is_ok());
  const Status third = submit(stream, engine(), 3);
  EXPECT_EQ(third.code(), StatusCode::kBadInput);
  EXPECT_THAT(third.message(), HasSubstr("2 frames are under way"));
  EXPECT_THAT(submit(other, engine(), 3).message(), HasSubstr("another stream"));
  const Request request(model_.config, 3);
  const Sample sample = request.sample();
  const Status plain = engine().infer({&sample, 1}, actions);
  EXPECT_EQ(plain.code(), StatusCode::kBadInput);
  EXPECT_THAT(plain.message(), HasSubstr("wait for their actions"));
  EXPECT_THROW(open_stream(engine()), Error);

  std::vector<float> small(3);
  EXPECT_THAT(stream.wait(small).message(), HasSubstr("room for 3"));
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(stream.wait(actions).is_ok());
    EXPECT_TRUE(same_bytes(actions, expected[i]));
  }
  EXPECT_EQ(stream.frames_under_way(), 0U);
  expect_same_chunks(streamed(other, engine(), 1, 3), expected);
  expect_same_chunks(plain_calls(engine(), 1, 3), expected);
}

// What is refused leaves the frames that are under way as they are.
TEST_P(StreamTest, RefusesFramesOfOtherPlansAndBadSamples) {
  const Chunks expected = plain_calls(engine(), 1, 2);
  FrameStream stream = open_stream(engine());
  ASSERT_TRUE(submit(stream, engine(), 1).is_ok());
  for (const Status& status : {submit(stream, engine(), 2, 2), submit(stream, engine(), 2, 3, 6), stream.submit({})}) {
    EXPECT_EQ(status.code(), StatusCode::kBadInput);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("prefix rows"), HasSubstr("the stream is for 1, 3 and")));
  }
  const Request request(model_.config, 2);
  Sample sample = request.sample();
  sample.noise = sample.noise.first(1);
  EXPECT_THAT(stream.submit({&sample, 1}).message(), HasSubstr("noise"));
  EXPECT_THROW(FrameStream(engine(), {&sample, 1}), Error);
  EXPECT_THROW(FrameStream(engine(), {}), Error);

  ASSERT_TRUE(submit(stream, engine(), 2).is_ok());
  Chunks chunks(2, std::vector<float>(values_of(engine())));
  for (std::vector<float>& chunk : chunks) EXPECT_TRUE(stream.wait(chunk).is_ok());
  expect_same_chunks(chunks, expected);
}

// A length of the buckets is one plan for all prompts that it holds.
TEST_P(StreamTest, PromptsMayChangeWithinTheirPaddedLength) {
  options_.prompt_lengths = {4, 8, model_.config.max_token_len};
  Engine padded(backend_, model_.config, model_.weights, options_);
  FrameStream stream = open_stream(padded);
  std::vector<float> actions(values_of(padded));
  for (const int64_t prompt : {5, 8, 6}) {
    ASSERT_TRUE(submit(stream, padded, prompt, 3, prompt).is_ok());
    ASSERT_TRUE(stream.wait(actions).is_ok());
    EXPECT_TRUE(same_bytes(actions, infer(padded, Request(model_.config, prompt, 3, prompt)))) << prompt;
  }
  EXPECT_EQ(submit(stream, padded, 1, 3, 4).code(), StatusCode::kBadInput);
}

TEST_P(StreamTest, AFrameThatOverflowsIsOverAndTheNextIsWell) {
  const Chunks expected = plain_calls(engine(), 2, 1);
  FrameStream stream = open_stream(engine());
  Request request(model_.config, 1);
  std::ranges::fill(request.noise, std::numeric_limits<float>::max());
  const Sample sample = request.sample();
  ASSERT_TRUE(stream.submit({&sample, 1}).is_ok());
  ASSERT_TRUE(submit(stream, engine(), 2).is_ok());
  std::vector<float> actions(values_of(engine()));
  EXPECT_EQ(stream.wait(actions).code(), StatusCode::kNonFinite);
  EXPECT_TRUE(stream.wait(actions).is_ok());
  EXPECT_TRUE(same_bytes(actions, expected[0]));
}

TEST_P(StreamTest, GivesBackWhatItHolds) {
  plain_calls(engine(), 1, 1);
  const int held = backend_.allocations - backend_.releases;
  const int pinned = backend_.host_allocations - backend_.host_releases;
  {
    FrameStream stream = open_stream(engine());
    EXPECT_GT(backend_.allocations - backend_.releases, held);
    ASSERT_TRUE(submit(stream, engine(), 1).is_ok());
    ASSERT_TRUE(submit(stream, engine(), 2).is_ok());
  }
  EXPECT_EQ(backend_.allocations - backend_.releases, held);
  EXPECT_EQ(backend_.host_allocations - backend_.host_releases, pinned);
  plain_calls(engine(), 1, 1);  // nothing is under way any more
}

}  // namespace
}  // namespace tendon::test
