// The pictures of tests/data/policy/resize.json, made as tools/make_policy_fixtures.py makes them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "policy/files/image.h"

namespace tendon {

inline Image picture(const std::string& rule, int height, int width) {
  Image image{height, width, {}};
  uint32_t index = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < 3; ++c, ++index) {
        int value = 0;
        if (rule == "noise") {
          uint32_t mixed = index * 2654435761U + 0x9e3779b9U;
          mixed = (mixed ^ (mixed >> 15)) * 2246822519U;
          value = static_cast<int>((mixed ^ (mixed >> 13)) >> 24);
        } else if (rule == "checker") {
          value = ((x / 8 + y / 8) & 1) * 255;
        } else if (rule == "point") {
          value = y == height / 2 && x == width / 2 ? 255 : 0;
        } else {
          value = (x + 2 * y + 85 * c) & 255;
        }
        image.rgb.push_back(static_cast<uint8_t>(value));
      }
    }
  }
  return image;
}

inline std::string fnv1a64(const std::vector<uint8_t>& bytes) {
  uint64_t value = 0xcbf29ce484222325ULL;
  for (const uint8_t byte : bytes) value = (value ^ byte) * 0x100000001b3ULL;
  return fmt::format("{:016x}", value);
}

// The same picture, channel by channel.
inline std::vector<uint8_t> planes_of(const Image& image) {
  const size_t pixels = image.rgb.size() / 3;
  std::vector<uint8_t> planes(image.rgb.size());
  for (size_t i = 0; i < image.rgb.size(); ++i) planes[i % 3 * pixels + i / 3] = image.rgb[i];
  return planes;
}

}  // namespace tendon
