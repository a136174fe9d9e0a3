#include "server/policy/observation.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "policy/resize.h"
#include "server/policy/chunking_keys.h"
#include "server/policy/pictures_ahead.h"

namespace tendon {
namespace {

constexpr size_t kMaxKeysShown = 24;

std::string keys_of(const WireMap& map) {
  std::vector<std::string> keys;
  for (const WireEntry& entry : map) {
    if (keys.size() == kMaxKeysShown) {
      keys.emplace_back("...");
      break;
    }
    keys.emplace_back(entry.key.substr(0, 64));
  }
  return keys.empty() ? "none" : fmt::format("{}", fmt::join(keys, ", "));
}

std::vector<std::string> wanted_keys(const Preset& preset) {
  std::vector<std::string> keys;
  for (const CameraSlot& camera : preset.robot->cameras) {
    if (camera.use == CameraUse::kRequired) keys.emplace_back(camera.key);
    if (camera.use == CameraUse::kOptional) keys.push_back(fmt::format("{} (optional)", camera.key));
  }
  for (const std::string_view key : preset.robot->state_keys) {
    if (!key.empty()) keys.emplace_back(key);
  }
  keys.emplace_back("prompt");
  return keys;
}

[[noreturn]] void throw_missing(std::string_view key, const WireMap& map, const Preset& preset) {
  throw_bad_input("the observation lacks the key '{}'. Keys got: {}. Keys that preset {} wants: {}.", key, keys_of(map),
                  preset.name, fmt::join(wanted_keys(preset), ", "));
}

const WireValue& require(const WireMap& map, std::string_view key, const Preset& preset) {
  const WireValue* const value = find_key(map, key);
  if (value == nullptr) throw_missing(key, map, preset);
  return *value;
}

void require_finite(std::span<const double> values, std::string_view key) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]))
      throw_bad_input("observation key '{}' holds {} at index {}; every value must be finite.", key, values[i], i);
  }
}

// All state keys, one after the other.
std::vector<double> read_state(const WireMap& map, const Preset& preset) {
  const Robot& robot = *preset.robot;
  std::vector<double> state;
  for (size_t i = 0; i < robot.state_keys.size(); ++i) {
    const std::string_view key = robot.state_keys[i];
    if (key.empty()) continue;
    const WireValue& value = require(map, key, preset);
    const std::vector<int64_t> shape = shape_of(value, key);
    const bool is_only = robot.state_keys[1].empty();
    if (shape.size() > 1) {
      throw_bad_input(
          "observation key '{}' has the shape ({}); expected {}. Send one observation per request, without a batch "
          "dimension.",
          key, fmt::join(shape, ", "), is_only ? fmt::format("({},)", robot.state_width) : "one dimension");
    }
    const std::vector<double> numbers = to_numbers(value, key);
    require_finite(numbers, key);
    const auto [begin, end] = robot.state_slices[i];
    if (end > std::ssize(numbers)) {
      throw_bad_input("observation key '{}' holds {} numbers, but preset {} takes those from {} to {}.", key,
                      numbers.size(), preset.name, begin, end - 1);
    }
    state.insert(state.end(), numbers.begin() + begin, end == 0 ? numbers.end() : numbers.begin() + end);
  }
  if (std::ssize(state) != robot.state_width) {
    const std::string keys = robot.state_keys[1].empty()
                                 ? std::string(robot.state_keys[0])
                                 : fmt::format("{} and {}", robot.state_keys[0], robot.state_keys[1]);
    throw_bad_input("observation key {} holds {} numbers, but preset {} takes {} ({}).", keys, state.size(),
                    preset.name, robot.state_width, robot.state_meaning);
  }
  return state;
}

// x·255 as NumPy computes it in the array's own type: half precision rounds the product to half.
double times_255(double x, int item_bytes) {
  if (item_bytes == 8) return 255.0 * x;
  const float product = 255.0F * static_cast<float>(x);
  if (item_bytes == 4 || product == 0) return double{product};
  // Eleven significant bits, to nearest even; below 2^-14 a half has a fixed step, and the result truncates to 0
  // anyway.
  const int exponent = std::ilogb(product);
  return std::ldexp(std::nearbyint(std::ldexp(product, 10 - exponent)), exponent - 10);
}

std::vector<uint8_t> to_bytes(const WireArray& array, const WireValue& value, std::string_view key) {
  std::vector<double> numbers = to_numbers(value, key);
  std::vector<uint8_t> bytes(numbers.size());
  if (array.kind == 'f') {
    require_finite(numbers, key);
    const auto [low, high] = std::ranges::minmax(numbers);
    if (low < 0 || high > 1) {
      throw_bad_input(
          "observation key '{}' is a picture of floats from {} to {}; floats must lie in [0, 1]. Send uint8, or divide "
          "by 255.",
          key, low, high);
    }
    for (size_t i = 0; i < numbers.size(); ++i)
      bytes[i] = static_cast<uint8_t>(times_255(numbers[i], array.item_bytes));
    return bytes;
  }
  const auto [low, high] = std::ranges::minmax(numbers);
  if (low < 0 || high > 255) {
    throw_bad_input("observation key '{}' is a picture of integers from {} to {}; they must lie in 0..255.", key, low,
                    high);
  }
  std::ranges::transform(numbers, bytes.begin(), [](double number) { return static_cast<uint8_t>(number); });
  return bytes;
}

bool is_bytes(const WireArray& array) { return array.kind == 'u' && array.item_bytes == 1; }

// Height and width, and whether colours come as planes; nothing if it has not the shape of a picture.
struct PictureShape {
  int64_t height, width;
  bool planar;
  bool is_sane() const {
    return height >= 1 && width >= 1 && height <= kMaxImageSide && width <= kMaxImageSide &&
           height * width <= kMaxImagePixels;
  }
  ImageView view(const void* bytes) const {
    return {static_cast<int>(height), static_cast<int>(width), static_cast<const uint8_t*>(bytes), planar};
  }
};
std::optional<PictureShape> picture_shape(const std::vector<int64_t>& shape, ImageLayout layout) {
  if (shape.size() != 3) return {};
  if (shape[0] == 3) return PictureShape{shape[1], shape[2], true};
  if (layout == ImageLayout::kChwOnly || shape[2] != 3) return {};
  return PictureShape{shape[0], shape[1], false};
}

// The camera's key in the map of cameras, or in the observation where there is no such map.
std::string_view key_in_map(const CameraSlot& camera, const Robot& robot) {
  return std::string_view(camera.key).substr(robot.camera_map.empty() ? 0 : robot.camera_map.size() + 1);
}

// The picture of one camera, to slot `slot` of the request.
void read_picture(const WireValue& value, std::string_view key, ImageLayout layout, const RequestDefaults& defaults,
                  PicturesAhead* ahead, size_t slot, RobotRequest& request) {
  const auto* array = value.get_if<WireArray>();
  if (array == nullptr || !array->is_numeric()) {
    throw_bad_input("observation key '{}' must be a picture (an array of numbers), but it is {}.", key,
                    value.describe());
  }
  const std::optional<PictureShape> shape = picture_shape(array->shape, layout);
  if (!shape) {
    const char* const wanted =
        layout == ImageLayout::kChwOnly ? "(3, height, width)" : "(height, width, 3) or (3, height, width)";
    throw_bad_input("observation key '{}' has the shape ({}); expected {}.{}", key, fmt::join(array->shape, ", "),
                    wanted,
                    array->shape.size() == 3 ? "" : " Send one observation per request, without a batch dimension.");
  }
  if (!shape->is_sane()) {
    throw_bad_input(
        "observation key '{}' is {} x {} pixels (width x height); a picture has 1 to {} per side and {} in all.", key,
        shape->width, shape->height, kMaxImageSide, kMaxImagePixels);
  }
  const bool as_it_lies = is_bytes(*array);
  std::vector<uint8_t> converted;
  if (!as_it_lies) converted = to_bytes(*array, value, key);
  const ImageView view = shape->view(as_it_lies ? static_cast<const void*>(array->data.data()) : converted.data());
  if (as_it_lies && view.height == defaults.image_side && view.width == defaults.image_side) {
    request.observation.lent[slot] = view;
    return;
  }
  std::optional<ReadyPicture> ready;
  if (as_it_lies && ahead != nullptr) ready = ahead->take(view);
  if (!ready) ready = make_ready(view, defaults);
  if (ready->frame) {
    request.frames[slot] = std::move(ready->frame);
  } else {
    request.observation.cameras[slot] = std::move(ready->image);
  }
}

void read_cameras(const WireMap& map, const Preset& preset, const RequestDefaults& defaults, PicturesAhead* ahead,
                  RobotRequest& request) {
  const Robot& robot = *preset.robot;
  const WireMap* cameras = &map;
  if (!robot.camera_map.empty()) {
    const WireValue& value = require(map, robot.camera_map, preset);
    cameras = value.get_if<WireMap>();
    if (cameras == nullptr) {
      throw_bad_input("observation key '{}' must be a map of cameras, but it is {}.", robot.camera_map,
                      value.describe());
    }
  }
  std::vector<std::string_view> names;
  for (size_t i = 0; i < kCameraSlots; ++i) {
    const CameraSlot& camera = robot.cameras[i];
    if (camera.use == CameraUse::kUnused) continue;
    const std::string_view name = key_in_map(camera, robot);
    names.push_back(name);
    if (const WireValue* const picture = find_key(*cameras, name)) {
      read_picture(*picture, camera.key, robot.layout, defaults, ahead, i, request);
    } else if (camera.use == CameraUse::kRequired) {
      if (robot.camera_map.empty()) throw_missing(camera.key, map, preset);
      throw_bad_input("the observation lacks the camera '{}'. Cameras got: {}. Keys that preset {} wants: {}.",
                      camera.key, keys_of(*cameras), preset.name, fmt::join(wanted_keys(preset), ", "));
    }
  }
  if (robot.camera_map.empty()) return;
  for (const WireEntry& entry : *cameras) {
    if (std::ranges::find(names, entry.key) == names.end() && entry.key != robot.idle_camera) {
      throw_bad_input("'{}' has an unknown camera '{}'; preset {} knows {}.", robot.camera_map, entry.key.substr(0, 64),
                      preset.name, fmt::join(names, ", "));
    }
  }
}

std::vector<float> read_noise(const WireValue& value, const RequestDefaults& defaults) {
  std::vector<int64_t> shape = shape_of(value, kNoiseKey);
  const std::vector<int64_t> given = shape;
  if (shape.size() == 3 && shape[0] == 1) shape.erase(shape.begin());
  if (shape != std::vector<int64_t>{defaults.horizon, defaults.action_dim}) {
    throw_bad_input("observation key '{}' has the shape ({}); expected ({}, {}) or (1, {}, {}).", kNoiseKey,
                    fmt::join(given, ", "), defaults.horizon, defaults.action_dim, defaults.horizon,
                    defaults.action_dim);
  }
  const std::vector<double> numbers = to_numbers(value, kNoiseKey);
  require_finite(numbers, kNoiseKey);
  std::vector<float> noise(numbers.size());
  std::ranges::transform(numbers, noise.begin(), [](double number) { return static_cast<float>(number); });
  return noise;
}

}  // namespace

ReadyPicture make_ready(const ImageView& picture, const RequestDefaults& defaults) {
  const int side = defaults.image_side;
  ReadyPicture ready;
  if (side > 0 && defaults.frames != nullptr) ready.frame = put_frame(*defaults.frames, picture, side);
  if (!ready.frame)
    ready.image = side > 0 ? resize_with_pad(picture, side, side, defaults.run_parts) : interleaved(picture);
  return ready;
}

std::vector<ImageView> pictures_in(const WireValue& message, const Preset& preset) {
  const Robot& robot = *preset.robot;
  const auto* cameras = message.get_if<WireMap>();
  if (cameras != nullptr && !robot.camera_map.empty()) {
    const WireValue* const value = find_key(*cameras, robot.camera_map);
    cameras = value == nullptr ? nullptr : value->get_if<WireMap>();
  }
  std::vector<ImageView> pictures;
  if (cameras == nullptr) return pictures;
  for (const CameraSlot& camera : robot.cameras) {
    if (camera.use == CameraUse::kUnused) continue;
    const WireValue* const value = find_key(*cameras, key_in_map(camera, robot));
    const auto* array = value == nullptr ? nullptr : value->get_if<WireArray>();
    if (array == nullptr || !is_bytes(*array)) continue;
    const std::optional<PictureShape> shape = picture_shape(array->shape, robot.layout);
    if (shape && shape->is_sane()) pictures.push_back(shape->view(array->data.data()));
  }
  return pictures;
}

RobotRequest read_request(const WireValue& message, const Preset& preset, const RequestDefaults& defaults,
                          PicturesAhead* ahead) {
  const auto* map = message.get_if<WireMap>();
  if (map == nullptr) throw_bad_input("the message must be a map (an observation), but it is {}.", message.describe());
  RobotRequest request;
  request.observation.previous = read_previous(*map, *preset.robot, defaults.chunking);
  read_cameras(*map, preset, defaults, ahead, request);
  request.observation.state = read_state(*map, preset);
  if (!defaults.tokens.empty()) {
    request.observation.tokens = defaults.tokens;
  } else if (const WireValue* const prompt = find_key(*map, "prompt")) {
    request.observation.prompt = to_text(*prompt, "prompt");
  } else if (defaults.prompt) {
    request.observation.prompt = *defaults.prompt;
  } else {
    throw_bad_input(
        "the prompt is missing. Keys got: {}. Send a text under 'prompt', or start the server with --default-prompt.",
        keys_of(*map));
  }
  if (const WireValue* const noise = find_key(*map, kNoiseKey)) request.noise = read_noise(*noise, defaults);
  return request;
}

}  // namespace tendon
