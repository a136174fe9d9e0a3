#include "server/example_request.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "server/observation.h"
#include "wire/message.h"

namespace tendon {
namespace {

// splitmix64, one number after the other.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15U;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

void write_picture(WireWriter& writer, const ExampleRequest& request, ImageLayout layout, Random& random) {
  std::vector<uint64_t> words((static_cast<size_t>(request.height) * request.width * 3 + 7) / 8);
  std::ranges::generate(words, [&] { return random.next(); });
  const auto bytes = std::as_bytes(std::span(words)).first(static_cast<size_t>(request.height) * request.width * 3);
  const bool planar = layout == ImageLayout::kChwOnly;
  const std::array<int64_t, 3> shape = planar ? std::array<int64_t, 3>{3, request.height, request.width}
                                              : std::array<int64_t, 3>{request.height, request.width, 3};
  writer.array("|u1", shape, bytes);
}

}  // namespace

std::string example_request(const Preset& preset, const ExampleRequest& request) {
  const Robot& robot = *preset.robot;
  Random random(request.number);
  WireWriter writer;
  std::vector<const CameraSlot*> cameras;
  for (const CameraSlot& camera : robot.cameras) {
    if (camera.use == CameraUse::kRequired || (camera.use == CameraUse::kOptional && request.optional_cameras))
      cameras.push_back(&camera);
  }
  const bool two_keys = !robot.state_keys[1].empty();
  const size_t camera_entries = robot.camera_map.empty() ? cameras.size() : 1;
  writer.map(camera_entries + (two_keys ? 2 : 1) + 1 + (request.noise.empty() ? 0 : 1));
  if (!robot.camera_map.empty()) writer.text(robot.camera_map).map(cameras.size());
  for (const CameraSlot* const camera : cameras) {
    writer.text(robot.camera_map.empty() ? camera->key : camera->key.substr(robot.camera_map.size() + 1));
    write_picture(writer, request, robot.layout, random);
  }
  std::vector<double> state(static_cast<size_t>(robot.state_width));
  std::ranges::generate(state, [&] { return static_cast<double>(random.next() >> 11) * 0x1.0p-53 - 0.5; });
  const std::span<const double> values(state);
  const size_t first = two_keys ? state.size() - 1 : state.size();  // the second key is the gripper
  const std::array<int64_t, 1> first_shape{static_cast<int64_t>(first)};
  writer.text(robot.state_keys[0]).array(first_shape, values.first(first));
  if (two_keys) {
    const std::array<int64_t, 1> one{1};
    writer.text(robot.state_keys[1]).array(one, values.subspan(first));
  }
  writer.text("prompt").text(fmt::format("pick up object {}", request.number % 1000));
  if (!request.noise.empty()) {
    const std::array<int64_t, 2> shape{request.horizon, request.action_dim};
    writer.text(kNoiseKey).array("<f4", shape, std::as_bytes(request.noise));
  }
  return writer.take();
}

}  // namespace tendon
