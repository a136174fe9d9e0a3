// Camera pictures from JPEG and PNG files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tendon {

// 8-bit RGB, rows from the top, (height, width, 3).
struct Image {
  int height = 0;
  int width = 0;
  std::vector<uint8_t> rgb;
};

// Pixels that belong to someone else: (height, width, 3), or `planar`, (3, height, width).
struct ImageView {
  int height = 0;
  int width = 0;
  const uint8_t* bytes = nullptr;
  bool planar = false;
};

// Larger pictures are refused before any pixel memory is allocated.
inline constexpr int kMaxImageSide = 16384;           // pixels
inline constexpr int64_t kMaxImagePixels = 64000000;  // height * width

// Decodes a whole JPEG or PNG file held in memory; the format is told by its first bytes, never by its name. Grayscale
// and palette pictures become RGB, an alpha channel is dropped, 16-bit samples keep their high byte. Orientation tags
// and colour profiles are ignored, as Pillow's Image.open does. `name` is used in messages only.
// Throws kBadInput: empty, unknown format, CMYK, over the size limits, damaged or truncated.
Image decode_image(std::span<const std::byte> bytes, std::string_view name);

// decode_image of the file at `path` (at most 256 MiB). Throws kBadInput also if it cannot be read.
Image load_image(const std::string& path);

}  // namespace tendon
