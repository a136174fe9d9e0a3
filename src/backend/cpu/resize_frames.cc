// resize_frames: pictures of any size to one size, in whole numbers.
#include <algorithm>
#include <cstring>

#include "backend/cpu/op_table.h"
#include "ops/frame.h"

namespace tendon {
namespace {

constexpr int32_t kHalf = 1 << (kFrameFractionBits - 1);

uint8_t to_byte(int32_t sum) { return static_cast<uint8_t>(std::min(sum >> kFrameFractionBits, 255)); }

struct Frame {
  FrameHeader header;
  FrameParts<const std::byte> parts;
  int64_t side;

  // Of one row of the source at column x of the result.
  uint8_t scaled_pixel(int64_t row, int64_t x, int64_t channel) const {
    const int64_t pixel_step = header.planar != 0 ? 1 : 3;
    const int64_t channel_step = header.planar != 0 ? int64_t{header.height} * header.width : 1;
    const int64_t first = parts.x_first[x];
    const uint8_t* const source = parts.pixels + (row * header.width + first) * pixel_step + channel * channel_step;
    int32_t sum = kHalf;
    for (int64_t p = 0; p < std::min<int64_t>(header.x_taps, header.width - first); ++p)
      sum += source[p * pixel_step] * parts.x_weights[p * side + x];
    return to_byte(sum);
  }
  uint8_t pixel(int64_t y, int64_t x, int64_t channel) const {
    int32_t sum = kHalf;
    for (int64_t p = 0; p < header.y_taps; ++p) {
      const int32_t weight = parts.y_weights[p * side + y];
      if (weight != 0) sum += weight * scaled_pixel(parts.y_first[y] + p, x, channel);
    }
    return to_byte(sum);
  }
};

bool can_resize_frames(const ResizeFrames&) { return true; }

Status run_resize_frames(const ResizeFrames& a, const char* label) {
  if (Status status = check_index(a.frames, "frames", 0, a.pool.rows(), label); !status.is_ok()) return status;
  const int64_t side = a.out.shape[1];
  const int64_t row_bytes = side * 3;
  parallel_for(a.out.shape[0] * side, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      uint8_t* const out = a.out.as<uint8_t>() + row * row_bytes;
      const int64_t number = a.frames.as<int32_t>()[row / side];
      if (number == 0) {
        std::memcpy(out, a.images.as<uint8_t>() + row * row_bytes, static_cast<size_t>(row_bytes));
        continue;
      }
      const auto* const bytes = a.pool.as<const std::byte>() + number * kFrameAlignment;
      FrameHeader header;
      std::memcpy(&header, bytes, sizeof(header));
      const Frame frame{header, FrameParts<const std::byte>(bytes, header, side), side};
      for (int64_t i = 0; i < row_bytes; ++i) out[i] = frame.pixel(row % side, i / 3, i % 3);
    }
  });
  return Status::ok();
}

}  // namespace

CpuOp cpu_resize_frames() { return plain_op<ResizeFrames, can_resize_frames, run_resize_frames>(); }

}  // namespace tendon
