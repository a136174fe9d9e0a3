#include "policy/resize.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/parallel.h"

namespace tendon {
namespace {

// Triangle filter in fixed point: output pixel i is a weighted sum of the source pixels first[i] .. first[i]+count[i].
constexpr int kFractionBits = 22;

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

uint8_t to_byte(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kFractionBits, 0, 255)); }

// (height, width, 3) -> (height, output_width, 3)
Image resize_rows(const Image& image, int output_width) {
  const Taps taps = make_taps(image.width, output_width);
  Image result{image.height, output_width, std::vector<uint8_t>(static_cast<size_t>(image.height) * output_width * 3)};
  parallel_for(image.height, 64, [&](int64_t begin, int64_t end) {
    for (int64_t y = begin; y < end; ++y) {
      const uint8_t* source_row = image.rgb.data() + y * image.width * 3;
      uint8_t* out = result.rgb.data() + y * output_width * 3;
      for (int x = 0; x < output_width; ++x, out += 3) {
        const uint8_t* source = source_row + taps.first[static_cast<size_t>(x)] * 3;
        const int32_t* weights = taps.weights.data() + static_cast<size_t>(x) * taps.stride;
        int32_t red = 1 << (kFractionBits - 1);
        int32_t green = red;
        int32_t blue = red;
        for (int p = 0; p < taps.count[static_cast<size_t>(x)]; ++p, source += 3) {
          red += source[0] * weights[p];
          green += source[1] * weights[p];
          blue += source[2] * weights[p];
        }
        out[0] = to_byte(red);
        out[1] = to_byte(green);
        out[2] = to_byte(blue);
      }
    }
  });
  return result;
}

// (height, width, 3) -> (output_height, width, 3)
Image resize_columns(const Image& image, int output_height) {
  const Taps taps = make_taps(image.height, output_height);
  const int64_t row_bytes = int64_t{image.width} * 3;
  Image result{output_height, image.width, std::vector<uint8_t>(static_cast<size_t>(output_height * row_bytes))};
  parallel_for(output_height, 32, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> sums(static_cast<size_t>(row_bytes));
    for (int64_t y = begin; y < end; ++y) {
      std::fill(sums.begin(), sums.end(), 1 << (kFractionBits - 1));
      for (int p = 0; p < taps.count[static_cast<size_t>(y)]; ++p) {
        const int32_t weight = taps.weights[static_cast<size_t>(y * taps.stride + p)];
        const uint8_t* source = image.rgb.data() + (taps.first[static_cast<size_t>(y)] + p) * row_bytes;
        for (int64_t i = 0; i < row_bytes; ++i) sums[static_cast<size_t>(i)] += source[i] * weight;
      }
      uint8_t* out = result.rgb.data() + y * row_bytes;
      for (int64_t i = 0; i < row_bytes; ++i) out[i] = to_byte(sums[static_cast<size_t>(i)]);
    }
  });
  return result;
}

}  // namespace

Image resize_with_pad(const Image& image, int height, int width) {
  TENDON_CHECK(image.rgb.size() == static_cast<size_t>(image.height) * static_cast<size_t>(image.width) * 3,
               "image of {} x {} with {} bytes", image.height, image.width, image.rgb.size());
  TENDON_CHECK(height > 0 && width > 0, "resize to {} x {}", height, width);
  if (image.height == 0 || image.width == 0) throw_bad_input("cannot resize an image without pixels.");
  if (image.height == height && image.width == width) return image;

  const double ratio = std::max(image.width / static_cast<double>(width), image.height / static_cast<double>(height));
  const int scaled_width = static_cast<int>(image.width / ratio);
  const int scaled_height = static_cast<int>(image.height / ratio);
  if (scaled_width == 0 || scaled_height == 0) {
    throw_bad_input(
        "an image of {} x {} pixels (width x height) is too narrow to be scaled into {} x {}: one side would have no "
        "pixel left. Crop it first.",
        image.width, image.height, width, height);
  }

  // Pillow's order: along rows first, rounded to bytes in between; a pass that changes nothing is left out.
  Image row_scaled;
  const Image* scaled = &image;
  if (scaled_width != image.width) {
    row_scaled = resize_rows(image, scaled_width);
    scaled = &row_scaled;
  }
  Image both_scaled;
  if (scaled_height != image.height) {
    both_scaled = resize_columns(*scaled, scaled_height);
    scaled = &both_scaled;
  }

  Image padded{height, width, std::vector<uint8_t>(static_cast<size_t>(height) * static_cast<size_t>(width) * 3, 0)};
  const int left = (width - scaled_width) / 2;
  const int top = (height - scaled_height) / 2;
  for (int y = 0; y < scaled_height; ++y) {
    std::copy_n(scaled->rgb.data() + int64_t{y} * scaled_width * 3, scaled_width * 3,
                padded.rgb.data() + (int64_t{top + y} * width + left) * 3);
  }
  return padded;
}

}  // namespace tendon
