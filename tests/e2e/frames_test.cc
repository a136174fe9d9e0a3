// Pictures of any size that the engine scales: Pillow's bytes, and the actions of pictures that the host has scaled.
#include <array>

#include "../unit/policy/policy_test.h"
#include "../unit/policy/resize_pictures.h"
#include "backend/sim/sim_backend.h"
#include "engine/frame_stream.h"
#include "ops/recorder.h"
#include "policy/policy.h"
#include "policy/resize.h"
#include "tiny.h"

namespace tendon::test {
namespace {

constexpr size_t kLargePool = 64 << 20;

// On the CPU, and on the simulated card in its orders of threads; with the sanitizers, which slow it down, in one.
const std::vector<std::optional<simt::Order>> kOrders = {
    std::nullopt,
#ifndef TENDON_SANITIZED
    simt::Order::kForward,
    simt::Order::kReverse,
#endif
    simt::Order::kShuffled,
};

// A plan of resize_frames alone.
class Resizer {
 public:
  explicit Resizer(Backend& backend) : pool_(backend, kLargePool) {
    Recorder recorder;
    const Shape shape = {1, kModelImageSide, kModelImageSide, 3};
    recorder.add(ResizeFrames{.images = recorder.input("images", DType::kU8, shape),
                              .frames = recorder.input("frames", DType::kI32, {1}),
                              .pool = pool_.memory(),
                              .out = recorder.output("out", DType::kU8, shape)});
    plan_ = std::make_unique<Plan>(backend, recorder);
  }
  std::vector<uint8_t> resized(const ImageView& image) {
    const PooledFrame frame = put_frame(pool_, image, kModelImageSide);
    EXPECT_TRUE(frame) << image.height << " x " << image.width;
    plan_->host("frames").as<int32_t>()[0] = frame.number();
    const Status status = plan_->run();
    EXPECT_TRUE(status.is_ok()) << status.message();
    const Tensor out = plan_->host("out");
    return {out.as<uint8_t>(), out.as<uint8_t>() + out.bytes()};
  }

 private:
  FramePool pool_;
  std::unique_ptr<Plan> plan_;
};

TEST(Frames, EqualPillowOnManySizes) {
  const auto cpu = make_backend("cpu");
  const auto card = sim::make_sim_backend({}, {});
  Resizer on_cpu(*cpu), on_card(*card);
  int compared = 0;
  const nlohmann::json cases = read_json("resize.json")["checksums"];
  for (const auto& one : cases) {
    const Image image = picture(one["rule"], one["height"], one["width"]);
    if (image.height == kModelImageSide && image.width == kModelImageSide) continue;
    const std::string expected = one["fnv1a64"];
    EXPECT_EQ(fnv1a64(on_cpu.resized(view_of(image))), expected) << one;
    EXPECT_EQ(fnv1a64(on_card.resized(view_of(image))), expected) << one;
    const std::vector<uint8_t> planes = planes_of(image);
    EXPECT_EQ(fnv1a64(on_card.resized({image.height, image.width, planes.data(), true})), expected) << one;
    ++compared;
  }
  EXPECT_GE(compared, 76);
}

TEST(Frames, PoolHandsOutItsGaps) {
  const auto backend = make_backend("cpu");
  FramePool pool(*backend, 16 * 11);
  PooledFrame first = pool.take(40);
  PooledFrame second = pool.take(48);
  PooledFrame third = pool.take(64);
  EXPECT_EQ(first.number(), 1);
  EXPECT_EQ(second.number(), 4);
  EXPECT_EQ(third.number(), 7);
  EXPECT_FALSE(pool.take(1));
  second = {};
  EXPECT_FALSE(pool.take(49));
  EXPECT_EQ(pool.take(48).number(), 4);  // and back at once
  const PooledFrame moved = std::move(first);
  EXPECT_EQ(pool.take(16).number(), 4);
  EXPECT_EQ(moved.data() - static_cast<std::byte*>(pool.memory().data), 16);
}

TEST(Frames, WhatTheHostHasToDoGetsNoRoom) {
  const auto backend = make_backend("cpu");
  FramePool pool(*backend, 100000);
  EXPECT_TRUE(put_frame(pool, view_of(picture("noise", 30, 40)), 28));
  EXPECT_FALSE(put_frame(pool, view_of(picture("noise", 28, 28)), 28)) << "the model's size";
  EXPECT_FALSE(put_frame(pool, view_of(picture("noise", 200, 200)), 28)) << "larger than the pool";
  EXPECT_FALSE(put_frame(pool, view_of(picture("noise", 1000, 1)), 28)) << "too narrow";
  EXPECT_FALSE(put_frame(pool, ImageView{}, 28)) << "no pixels";
}

// --- tiny models -----------------------------------------------------------------------------------------------------

Observation observation_of(const Preset& preset, const std::array<std::pair<int, int>, 3>& sizes) {
  Observation observation;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i].first > 0) observation.cameras[i] = picture("noise", sizes[i].first, sizes[i].second);
  }
  observation.state.assign(static_cast<size_t>(preset.robot->state_width), 0.25);
  observation.tokens = {2, 7, 11};
  return observation;
}

struct Robot {
  gpu::Runtime* card = nullptr;
  std::unique_ptr<Backend> backend;
  LoadedModel model;
  std::unique_ptr<Engine> engine;
  std::optional<Policy> policy;

  // `order`: on the simulated card, else on the CPU.
  Robot(const std::string& directory, const std::string& preset, size_t frame_bytes,
        std::optional<simt::Order> order = {})
      : backend(order ? sim::make_sim_backend({.order = *order}, {}, &card) : make_backend("cpu")),
        model(load_tiny(data_dir() / directory, 4)) {
    EngineOptions options;
    options.steps = 1;
    options.frame_bytes = frame_bytes;
    engine = std::make_unique<Engine>(*backend, model.config, model.weights, options);
    policy.emplace(*engine, find_preset(preset), std::nullopt, nullptr);
  }

  // The actions of a batch of observations, and how many of their pictures lay in the pool.
  std::pair<std::vector<std::vector<double>>, int64_t> run(const std::vector<Observation>& observations) {
    std::vector<PreparedObservation> prepared;
    for (const Observation& observation : observations) prepared.push_back(policy->prepare(observation));
    std::vector<const PreparedObservation*> batch;
    int64_t frames = 0;
    for (const PreparedObservation& one : prepared) {
      batch.push_back(&one);
      frames += std::ranges::count_if(one.frames, [](const PooledFrame& frame) { return static_cast<bool>(frame); });
    }
    const ModelConfig& config = engine->config();
    std::vector<float> noise;
    for (size_t i = 0; i < batch.size(); ++i) {
      const std::vector<float> own = synthetic_noise(config.horizon, config.action_dim, static_cast<int64_t>(i));
      noise.insert(noise.end(), own.begin(), own.end());
    }
    std::vector<std::vector<double>> actions;
    for (const ActionChunk& chunk : policy->infer(batch, noise)) actions.push_back(chunk.actions);
    return {actions, frames};
  }
};

// Batches of mixed sizes; a picture that no pool of this size holds, and calls that find the pool full.
TEST(Frames, GiveTheActionsOfPicturesThatTheHostResizes) {
  constexpr size_t kPool = 80000;
  for (const auto& [directory, preset] : {std::pair{"tiny_pi0", "pi0_aloha"}, {"tiny_pi05", "pi05_libero"}}) {
    SCOPED_TRACE(preset);
    const Preset& robot = find_preset(preset);
    const LoadedModel model = load_tiny(data_dir() / directory);
    const auto side = static_cast<int>(model.config.vision.image_size);
    const std::vector<std::vector<Observation>> calls = {
        {observation_of(robot, {{{48, 64}, {side, side}, {0, 0}}})},
        {observation_of(robot, {{{side, side}, {side, side}, {0, 0}}})},
        {observation_of(robot, {{{48, 64}, {200, 200}, {0, 0}}}), observation_of(robot, {{{7, 9}, {30, 20}, {0, 0}}})},
        {observation_of(robot, {{{90, 100}, {100, 90}, {0, 0}}}),
         observation_of(robot, {{{91, 100}, {100, 91}, {0, 0}}})}};
    const std::vector<int64_t> expected_frames = {1, 0, 3, 2};
    for (const std::optional<simt::Order>& order : kOrders) {
      Robot host(directory, preset, 0, order), card(directory, preset, kPool, order);
      EXPECT_EQ(host.engine->frames(), nullptr);
      for (size_t call = 0; call < calls.size(); ++call) {
        const auto [expected, none] = host.run(calls[call]);
        const auto [actions, frames] = card.run(calls[call]);
        EXPECT_EQ(actions, expected) << call;
        EXPECT_EQ(none, 0);
        EXPECT_EQ(frames, expected_frames[call]) << call;
      }
    }
  }
}

TEST(Frames, CallsNeitherAllocateNorCaptureWhateverSizesCome) {
  Robot robot("tiny_pi0", "pi0_aloha", kLargePool, simt::Order::kForward);
  const Preset& preset = robot.policy->preset();
  robot.run({observation_of(preset, {{{28, 28}, {0, 0}, {0, 0}}})});
  const gpu::Counters start = robot.card->counters();
  EXPECT_EQ(start.captures, 1U);
  for (const auto& [height, width] : {std::pair{48, 64}, {28, 28}, {480, 640}, {5, 3}, {270, 480}}) {
    robot.run({observation_of(preset, {{{height, width}, {0, 0}, {0, 0}}})});
  }
  const gpu::Counters& end = robot.card->counters();
  EXPECT_EQ(end.allocations, start.allocations);
  EXPECT_EQ(end.host_allocations, start.host_allocations);
  EXPECT_EQ(end.captures, start.captures);
  EXPECT_EQ(end.graph_launches, start.graph_launches + 5);
}

TEST(Frames, OfAnotherPoolAreRefused) {
  Robot robot("tiny_pi0", "pi0_aloha", kLargePool);
  Robot other("tiny_pi0", "pi0_aloha", kLargePool);
  const Request request(robot.model.config, 1);
  const auto message = [&](const PooledFrame& frame, bool beside_floats) {
    const std::vector<float> floats(static_cast<size_t>(robot.model.config.vision.pixels()));
    Sample sample = request.sample();
    sample.cameras[0] = {nullptr, DType::kU8, true, &frame};
    if (beside_floats) sample.cameras[1] = {floats.data(), DType::kF32, true};
    std::vector<float> actions(request.noise.size());
    const Status status = robot.engine->infer(std::span(&sample, 1), actions);
    EXPECT_EQ(status.code(), StatusCode::kBadInput);
    return std::string(status.message());
  };
  const Image image = picture("noise", 40, 50);
  EXPECT_NE(message(put_frame(*other.engine->frames(), view_of(image), 28), false).find("another pool"),
            std::string::npos);
  EXPECT_NE(message({}, false).find("another pool"), std::string::npos);
  EXPECT_NE(message(put_frame(*robot.engine->frames(), view_of(image), 28), true).find("cannot share"),
            std::string::npos);
}

TEST(Frames, BesideFloatsAreRefusedByAStreamToo) {
  Robot robot("tiny_pi0", "pi0_aloha", kLargePool);
  const Request request(robot.model.config, 1);
  const std::vector<float> floats(static_cast<size_t>(robot.model.config.vision.pixels()));
  Sample sample = request.sample();
  sample.cameras[0] = sample.cameras[1] = {floats.data(), DType::kF32, true};
  FrameStream stream(*robot.engine, std::span(&sample, 1));
  const PooledFrame frame = put_frame(*robot.engine->frames(), view_of(picture("noise", 40, 50)), 28);
  sample.cameras[0] = {nullptr, DType::kU8, true, &frame};
  const Status status = stream.submit(std::span(&sample, 1));
  EXPECT_EQ(status.code(), StatusCode::kBadInput);
  EXPECT_NE(std::string(status.message()).find("cannot share"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace tendon::test
