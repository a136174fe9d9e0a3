// How a picture of any size lies in memory, with the weights that scale it: what resize_frames (ops/basic_ops.h) reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tendon {

// A frame begins with this, at a multiple of 16 bytes. Behind it come, for a result of side x side pixels, all i32:
//   x_first (side), x_weights (x_taps, side), y_first (side), y_weights (y_taps, side)
// first: where the source pixels of a pixel of the result begin; it never falls from one to the next. weights: of these
// pixels, 22 fraction bits, not negative, of one pixel of the result 1 together, and 0 past the edge of the source. A
// pixel without any weight is a bar, and 0. Then, at a multiple of 16 bytes, the pixels; the frame ends at another one.
struct FrameHeader {
  int32_t height = 0, width = 0;   // of the source, pixels
  int32_t planar = 0;              // 1: the pixels are (3, height, width); 0: (height, width, 3)
  int32_t x_taps = 0, y_taps = 0;  // source pixels of one pixel of the result, along a row and along a column
  int32_t pixels_at = 0;           // bytes from the beginning of the frame
  int32_t unused[2] = {};
};
static_assert(sizeof(FrameHeader) == 32);

inline constexpr int kFrameFractionBits = 22;
inline constexpr int64_t kFrameAlignment = 16;   // bytes
inline constexpr int64_t kMaxFrameSide = 16384;  // pixels

constexpr int64_t frame_aligned(int64_t bytes) {
  return (bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}

// Header and tables, up to the pixels.
constexpr int64_t frame_table_bytes(int64_t side, int64_t x_taps, int64_t y_taps) {
  return frame_aligned(static_cast<int64_t>(sizeof(FrameHeader)) +
                       side * (2 + x_taps + y_taps) * static_cast<int64_t>(sizeof(int32_t)));
}
// What they may have: enough for a triangle filter over the largest source in both directions.
constexpr int64_t max_frame_table_bytes(int64_t side) {
  const int64_t taps = 2 * ((kMaxFrameSide + side - 1) / side) + 1;
  return frame_table_bytes(side, taps, taps);
}
constexpr int64_t frame_bytes(const FrameHeader& header) {
  return header.pixels_at + frame_aligned(3 * int64_t{header.height} * header.width);
}

// Where the parts of a frame are that begins at `frame`. Byte: std::byte, or const std::byte to read alone.
template <class Byte>
struct FrameParts {
  template <class T>
  using Part = std::conditional_t<std::is_const_v<Byte>, const T, T>;

  FrameParts(Byte* frame, const FrameHeader& header, int64_t side)
      : x_first(reinterpret_cast<Part<int32_t>*>(frame + sizeof(FrameHeader))),
        x_weights(x_first + side),
        y_first(x_weights + side * header.x_taps),
        y_weights(y_first + side),
        pixels(reinterpret_cast<Part<uint8_t>*>(frame + header.pixels_at)) {}
  Part<int32_t>*x_first, *x_weights, *y_first, *y_weights;
  Part<uint8_t>* pixels;
};

}  // namespace tendon
