#include "policy/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "base/convert.h"
#include "base/parallel.h"
#include "base/simd.h"
#include "ops/frame.h"

namespace tendon {
namespace {

// Triangle filter in fixed point: output pixel i is a weighted sum of the source pixels first[i] .. first[i]+count[i].
constexpr int kFractionBits = kFrameFractionBits;

struct Taps {
  std::vector<int> first;
  std::vector<int> count;
  std::vector<int32_t> weights;  // (output, stride), 22 fraction bits
  int stride = 0;
};

Taps make_taps(int source, int output) {
  const double scale = static_cast<double>(source) / output;
  const double reach = std::max(scale, 1.0);  // the filter widens when shrinking (antialiasing)
  const double inverse_reach = 1.0 / reach;
  Taps taps;
  taps.stride = static_cast<int>(std::ceil(reach)) * 2 + 1;
  taps.weights.assign(static_cast<size_t>(output) * taps.stride, 0);
  std::vector<double> weights(static_cast<size_t>(taps.stride));
  for (int i = 0; i < output; ++i) {
    // Truncation after + 0.5 is Pillow's rounding; lround would differ for negative values.
    const double center = (i + 0.5) * scale;
    const int low = std::max(static_cast<int>(center - reach + 0.5), 0);
    const int high = std::min(static_cast<int>(center + reach + 0.5), source);
    double sum = 0.0;
    for (int p = low; p < high; ++p) {
      const double weight = std::max(0.0, 1.0 - std::abs((p - center + 0.5) * inverse_reach));
      weights[static_cast<size_t>(p - low)] = weight;
      sum += weight;
    }
    taps.first.push_back(low);
    taps.count.push_back(high - low);
    int32_t* row = taps.weights.data() + static_cast<size_t>(i) * taps.stride;
    for (int p = 0; p < high - low; ++p) {
      const double weight = sum == 0.0 ? 0.0 : weights[static_cast<size_t>(p)] / sum;
      row[p] = static_cast<int32_t>(weight * (1 << kFractionBits) + 0.5);
    }
  }
  return taps;
}

// Along rows, 16 rows at a time: their bytes are turned into columns of 16, so that one multiplication serves 16 rows.
constexpr int kBlock = 16;
constexpr int kCacheLine = 64, kPrefetchBytes = 256;  // of each row: so many rows at once are too many for the hardware
using Column = uint8_t __attribute__((vector_size(kBlock)));
using Sums = int32_t __attribute__((vector_size(4 * kBlock)));
#define TENDON_INLINE __attribute__((always_inline)) inline

TENDON_INLINE Column even_half(Column a, Column b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
TENDON_INLINE Column odd_half(Column a, Column b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

// 16 x 16 bytes: four perfect shuffles.
TENDON_INLINE void transpose(Column* block) {
  for (int round = 0; round < 4; ++round) {
    Column next[kBlock];
    for (int i = 0; i < kBlock / 2; ++i) {
      next[2 * i] = even_half(block[i], block[i + kBlock / 2]);
      next[2 * i + 1] = odd_half(block[i], block[i + kBlock / 2]);
    }
    for (int i = 0; i < kBlock; ++i) block[i] = next[i];
  }
}

TENDON_INLINE int step_to(int at, int count) { return at + kBlock <= count ? at : count - kBlock; }

// columns[i] = byte i of every row; `count` bytes a row.
TENDON_INLINE void rows_to_columns(const uint8_t* const* rows, int count, Column* columns) {
  if (count < kBlock) {
    for (int i = 0; i < count; ++i) {
      for (int r = 0; r < kBlock; ++r) columns[i][r] = rows[r][i];
    }
    return;
  }
  for (int at = 0; at < count; at += kBlock) {
    const int begin = step_to(at, count);  // the last block may repeat bytes of the one before
    if (at % kCacheLine == 0) {
      for (int r = 0; r < kBlock; ++r) __builtin_prefetch(rows[r] + at + kPrefetchBytes);
    }
    Column block[kBlock];
    for (int r = 0; r < kBlock; ++r) std::memcpy(&block[r], rows[r] + begin, kBlock);
    transpose(block);
    for (int i = 0; i < kBlock; ++i) columns[begin + i] = block[i];
  }
}

// The way back, for the first `used` rows.
TENDON_INLINE void columns_to_rows(const Column* columns, int count, uint8_t* const* rows, int used) {
  if (count < kBlock) {
    for (int i = 0; i < count; ++i) {
      for (int r = 0; r < used; ++r) rows[r][i] = columns[i][r];
    }
    return;
  }
  for (int at = 0; at < count; at += kBlock) {
    const int begin = step_to(at, count);
    Column block[kBlock];
    for (int i = 0; i < kBlock; ++i) block[i] = columns[begin + i];
    transpose(block);
    for (int r = 0; r < used; ++r) std::memcpy(rows[r] + begin, &block[r], kBlock);
  }
}

// Columns of one block of rows: pixel x of channel c is at x·pixel_step + c·channel_step.
struct BlockLayout {
  int64_t pixel_step, channel_step;
};

TENDON_SIMD_CLONES void scale_block(const ImageView& image, int first_row, int used, const Taps& taps, int output_width,
                                    Column* columns, Column* scaled, uint8_t* out) {
  const int channels_in_row = image.planar ? 1 : 3;
  const int count = image.width * channels_in_row;
  const BlockLayout layout = image.planar ? BlockLayout{1, image.width} : BlockLayout{3, 1};
  const uint8_t* rows[kBlock];
  for (int plane = 0; plane < (image.planar ? 3 : 1); ++plane) {
    for (int r = 0; r < kBlock; ++r) {
      const int64_t row = int64_t{plane} * image.height + first_row + std::min(r, used - 1);
      rows[r] = image.bytes + row * count;
    }
    rows_to_columns(rows, count, columns + plane * image.width);
  }
  for (int x = 0; x < output_width; ++x) {
    const Column* const source = columns + taps.first[static_cast<size_t>(x)] * layout.pixel_step;
    const int32_t* const weights = taps.weights.data() + static_cast<size_t>(x) * taps.stride;
    for (int c = 0; c < 3; ++c) {
      int32_t sums[kBlock];
      for (int r = 0; r < kBlock; ++r) sums[r] = 1 << (kFractionBits - 1);
      const uint8_t* pixel = reinterpret_cast<const uint8_t*>(source + c * layout.channel_step);
      for (int p = 0; p < taps.count[static_cast<size_t>(x)]; ++p, pixel += kBlock * layout.pixel_step) {
        for (int r = 0; r < kBlock; ++r) sums[r] += pixel[r] * weights[p];
      }
      auto* const out_column = reinterpret_cast<uint8_t*>(scaled + 3 * x + c);
      for (int r = 0; r < kBlock; ++r) out_column[r] = static_cast<uint8_t>(std::min(sums[r] >> kFractionBits, 255));
    }
  }
  uint8_t* out_rows[kBlock] = {};
  for (int r = 0; r < used; ++r) out_rows[r] = out + int64_t{first_row + r} * output_width * 3;
  columns_to_rows(scaled, output_width * 3, out_rows, used);
}

// `count` steps of one pass, `grain` of them at a time; body(begin, end).
template <class Body>
void run_pass(int64_t count, int64_t grain, const RunParts& run, const Body& body) {
  if (!run) return parallel_for(count, grain, body);
  run((count + grain - 1) / grain, [&](int64_t part) { body(part * grain, std::min((part + 1) * grain, count)); });
}

// What is between the two passes. Kept by its thread: allocated for each picture it costs a page fault every 4 KB.
class Between {
 public:
  uint8_t* get(size_t bytes) {
    if (bytes > capacity_) {
      bytes_ = std::make_unique_for_overwrite<uint8_t[]>(bytes);
      capacity_ = bytes;
    }
    return bytes_.get();
  }
  void release_much() {
    constexpr size_t kKeptBytes = 4 << 20;
    if (capacity_ > kKeptBytes) *this = {};
  }

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  size_t capacity_ = 0;
};

// (height, width, 3) or planes -> (height, output_width, 3)
void resize_rows(const ImageView& image, int output_width, const RunParts& run, uint8_t* out) {
  const Taps taps = make_taps(image.width, output_width);
  const int64_t blocks = (image.height + kBlock - 1) / kBlock;
  run_pass(blocks, 4, run, [&](int64_t begin, int64_t end) {
    const auto columns = std::make_unique_for_overwrite<Column[]>(static_cast<size_t>(image.width) * 3);
    const auto scaled = std::make_unique_for_overwrite<Column[]>(static_cast<size_t>(output_width) * 3);
    for (int64_t block = begin; block < end; ++block) {
      const int first = static_cast<int>(block) * kBlock;
      scale_block(image, first, std::min(kBlock, image.height - first), taps, output_width, columns.get(), scaled.get(),
                  out);
    }
  });
}

TENDON_SIMD_CLONES void weighted_rows(const uint8_t* first, int64_t row_bytes, const int32_t* weights, int count,
                                      int32_t* sums, uint8_t* out) {
  for (int64_t i = 0; i < row_bytes; ++i) sums[i] = 1 << (kFractionBits - 1);
  for (int p = 0; p < count; ++p) {
    const uint8_t* const source = first + p * row_bytes;
    for (int64_t i = 0; i < row_bytes; ++i) sums[i] += source[i] * weights[p];
  }
  for (int64_t i = 0; i < row_bytes; ++i) out[i] = static_cast<uint8_t>(std::min(sums[i] >> kFractionBits, 255));
}

// (height, width, 3) -> (output_height, width, 3)
Image resize_columns(const ImageView& image, int output_height, const RunParts& run) {
  const Taps taps = make_taps(image.height, output_height);
  const int64_t row_bytes = int64_t{image.width} * 3;
  Image result{output_height, image.width, std::vector<uint8_t>(static_cast<size_t>(output_height * row_bytes))};
  run_pass(output_height, 32, run, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> sums(static_cast<size_t>(row_bytes));
    for (int64_t y = begin; y < end; ++y) {
      const auto at = static_cast<size_t>(y);
      weighted_rows(image.bytes + taps.first[at] * row_bytes, row_bytes, taps.weights.data() + at * taps.stride,
                    taps.count[at], sums.data(), result.rgb.data() + y * row_bytes);
    }
  });
  return result;
}

// The largest that fits and has the picture's aspect ratio; a side without pixels where it is too narrow.
struct ScaledSize {
  int height, width;
};
ScaledSize scaled_size(const ImageView& image, int height, int width) {
  const double ratio = std::max(image.width / static_cast<double>(width), image.height / static_cast<double>(height));
  return {static_cast<int>(image.height / ratio), static_cast<int>(image.width / ratio)};
}

// The tables of one direction of a frame, with bars around the scaled picture.
void put_tables(const Taps& taps, int side, int32_t* first, int32_t* weights) {
  const int scaled = static_cast<int>(taps.first.size());
  const int before = (side - scaled) / 2;
  for (int i = 0; i < side; ++i) {
    const auto at = static_cast<size_t>(std::clamp(i - before, 0, scaled - 1));
    const bool is_bar = static_cast<int>(at) != i - before;
    first[i] = taps.first[at];
    for (int p = 0; p < taps.stride; ++p)
      weights[p * side + i] = is_bar ? 0 : taps.weights[at * static_cast<size_t>(taps.stride) + static_cast<size_t>(p)];
  }
}

}  // namespace

PooledFrame put_frame(FramePool& pool, const ImageView& image, int side) {
  if (image.height == 0 || image.width == 0 || (image.height == side && image.width == side)) return {};
  const ScaledSize size = scaled_size(image, side, side);
  if (size.height == 0 || size.width == 0) return {};
  const Taps x = make_taps(image.width, size.width);
  const Taps y = make_taps(image.height, size.height);
  const int64_t tables = frame_table_bytes(side, x.stride, y.stride);
  if (tables > max_frame_table_bytes(side)) return {};
  const FrameHeader header{.height = image.height,
                           .width = image.width,
                           .planar = image.planar ? 1 : 0,
                           .x_taps = x.stride,
                           .y_taps = y.stride,
                           .pixels_at = static_cast<int32_t>(tables)};
  PooledFrame frame = pool.take(frame_bytes(header));
  if (!frame) return {};
  std::memcpy(frame.data(), &header, sizeof(header));
  const FrameParts<std::byte> parts(frame.data(), header, side);
  put_tables(x, side, parts.x_first, parts.x_weights);
  put_tables(y, side, parts.y_first, parts.y_weights);
  std::memcpy(parts.pixels, image.bytes, 3 * static_cast<size_t>(image.height) * static_cast<size_t>(image.width));
  return frame;
}

Image interleaved(const ImageView& image) {
  const auto pixels = static_cast<size_t>(image.height) * static_cast<size_t>(image.width);
  Image result{image.height, image.width, {}};
  if (!image.planar) {
    result.rgb.assign(image.bytes, image.bytes + 3 * pixels);
    return result;
  }
  result.rgb.resize(3 * pixels);
  interleave_planes(image.bytes, pixels, result.rgb.data());
  return result;
}

ImageView view_of(const Image& image) {
  TENDON_CHECK(image.rgb.size() == static_cast<size_t>(image.height) * static_cast<size_t>(image.width) * 3,
               "image of {} x {} with {} bytes", image.height, image.width, image.rgb.size());
  return {image.height, image.width, image.rgb.data(), false};
}

Image resize_with_pad(const Image& image, int height, int width) {
  return resize_with_pad(view_of(image), height, width);
}

Image resize_with_pad(const ImageView& image, int height, int width, const RunParts& run) {
  TENDON_CHECK(height > 0 && width > 0, "resize to {} x {}", height, width);
  if (image.height == 0 || image.width == 0) throw_bad_input("cannot resize an image without pixels.");
  if (image.height == height && image.width == width) return interleaved(image);

  const ScaledSize size = scaled_size(image, height, width);
  if (size.width == 0 || size.height == 0) {
    throw_bad_input(
        "an image of {} x {} pixels (width x height) is too narrow to be scaled into {} x {}: one side would have no "
        "pixel left. Crop it first.",
        image.width, image.height, width, height);
  }

  // Pillow's order: along rows first, rounded to bytes in between; a pass that changes nothing is left out.
  const bool skips_rows = size.width == image.width;
  static thread_local Between between;
  Image owned;
  ImageView scaled{image.height, size.width, nullptr, false};
  if (skips_rows) {
    owned = interleaved(image);
    scaled.bytes = owned.rgb.data();
  } else {
    uint8_t* const rows = between.get(static_cast<size_t>(image.height) * static_cast<size_t>(size.width) * 3);
    resize_rows(image, size.width, run, rows);
    scaled.bytes = rows;
  }
  if (size.height != image.height) {
    owned = resize_columns(scaled, size.height, run);
    scaled.bytes = owned.rgb.data();
  }

  Image padded{height, width, std::vector<uint8_t>(static_cast<size_t>(height) * static_cast<size_t>(width) * 3, 0)};
  const int left = (width - size.width) / 2;
  const int top = (height - size.height) / 2;
  for (int y = 0; y < size.height; ++y) {
    std::copy_n(scaled.bytes + int64_t{y} * size.width * 3, size.width * 3,
                padded.rgb.data() + (int64_t{top + y} * width + left) * 3);
  }
  between.release_much();
  return padded;
}

}  // namespace tendon
