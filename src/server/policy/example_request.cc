#include "server/policy/example_request.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "server/policy/observation.h"
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
  std::span<const double> values(state);
  for (size_t i = 0; i < (two_keys ? 2U : 1U); ++i) {
    const auto [begin, end] = robot.state_slices[i];
    const bool is_rest = i == 1 || !two_keys;
    const auto last = robot.state_slices[1][1] - robot.state_slices[1][0];  // numbers of the second key; 0: a gripper
    const size_t rest = is_rest ? values.size() : values.size() - static_cast<size_t>(std::max(last, 1));
    const size_t used = end > 0 ? static_cast<size_t>(end - begin) : rest;
    std::vector<double> row(static_cast<size_t>(begin), 0.0);
    row.insert(row.end(), values.begin(), values.begin() + static_cast<std::ptrdiff_t>(used));
    values = values.subspan(used);
    const std::array<int64_t, 1> shape{static_cast<int64_t>(row.size())};
    writer.text(robot.state_keys[i]).array(shape, row);
  }
  writer.text("prompt").text(fmt::format("pick up object {}", request.number % 1000));
  if (!request.noise.empty()) {
    const std::array<int64_t, 2> shape{request.horizon, request.action_dim};
    writer.text(kNoiseKey).array("<f4", shape, std::as_bytes(request.noise));
  }
  return writer.take();
}

}  // namespace tendon
