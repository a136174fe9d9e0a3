#include "frame_cases.h"

#include <algorithm>
#include <cstring>

#include "maker.h"
#include "ops/frame.h"

namespace tendon::op_check {
namespace {

// A frame that is scaled into the middle of the result; height 0: the result is a picture of the right size.
struct FrameShape {
  int64_t height = 0, width = 0;
  bool planar = false;
  int64_t left = 0, top = 0, right = 0, bottom = 0;  // bars
};

// One direction: where each pixel of the result begins in the source and what weighs how much there.
struct Direction {
  std::vector<int64_t> first;
  std::vector<int32_t> weights;  // (taps, side)
  int64_t taps;
};

// As a triangle filter has them, but with random weights; some pixels have a little more than 1 in all.
Direction make_direction(int64_t source, int64_t side, int64_t before, int64_t after, Random& random) {
  const int64_t scaled = side - before - after;
  const int64_t reach = std::max<int64_t>(1, (source + scaled - 1) / scaled);
  Direction direction{{}, {}, 2 * reach + 1};
  direction.weights.assign(static_cast<size_t>(direction.taps * side), 0);
  for (int64_t i = 0; i < side; ++i) {
    const int64_t at = std::clamp<int64_t>(i - before, 0, scaled - 1);
    const int64_t first = std::clamp<int64_t>(at * source / scaled - reach / 2, 0, source - 1);
    direction.first.push_back(first);
    if (i < before || i >= side - after) continue;
    const int64_t count = std::min(direction.taps - 1, source - first);
    double whole = (i % 7 == 3 ? 1.02 : 1.0) * (1 << kFrameFractionBits);
    for (int64_t p = 0; p < count; ++p) {
      const double share = p + 1 == count ? whole : whole * random.uniform() * 2 / static_cast<double>(count + 1);
      direction.weights[static_cast<size_t>(p * side + i)] = static_cast<int32_t>(share);
      whole -= static_cast<double>(static_cast<int32_t>(share));
    }
  }
  return direction;
}

std::vector<uint8_t> make_frame(const FrameShape& shape, int64_t side, Random& random) {
  const Direction x = make_direction(shape.width, side, shape.left, shape.right, random);
  const Direction y = make_direction(shape.height, side, shape.top, shape.bottom, random);
  const int64_t tables = frame_table_bytes(side, x.taps, y.taps);
  const FrameHeader header{.height = static_cast<int32_t>(shape.height),
                           .width = static_cast<int32_t>(shape.width),
                           .planar = shape.planar ? 1 : 0,
                           .x_taps = static_cast<int32_t>(x.taps),
                           .y_taps = static_cast<int32_t>(y.taps),
                           .pixels_at = static_cast<int32_t>(tables)};
  std::vector<uint8_t> bytes(static_cast<size_t>(frame_bytes(header)), 0xee);
  std::memcpy(bytes.data(), &header, sizeof(header));
  const FrameParts<std::byte> parts(reinterpret_cast<std::byte*>(bytes.data()), header, side);
  std::ranges::copy(x.first, parts.x_first);
  std::ranges::copy(x.weights, parts.x_weights);
  std::ranges::copy(y.first, parts.y_first);
  std::ranges::copy(y.weights, parts.y_weights);
  // Some runs of white, to meet the largest byte.
  for (int64_t i = 0; i < 3 * shape.height * shape.width; ++i)
    parts.pixels[i] = static_cast<uint8_t>(i / 64 % 5 == 2 ? 255 : random.integer(0, 256));
  return bytes;
}

Case make_case(const std::string& name, int64_t side, const std::vector<FrameShape>& shapes) {
  Random random(shapes.size() + static_cast<uint64_t>(side));
  std::vector<uint8_t> pool(kFrameAlignment, 0xee);
  std::vector<double> frames;
  for (const FrameShape& shape : shapes) {
    frames.push_back(shape.height == 0 ? 0 : static_cast<double>(pool.size() / kFrameAlignment));
    if (shape.height == 0) continue;
    const std::vector<uint8_t> frame = make_frame(shape, side, random);
    pool.insert(pool.end(), frame.begin(), frame.end());
  }
  Maker m;
  const Shape pictures = {std::ssize(shapes), side, side, 3};
  const Fill pool_bytes = [pool](Random&, int64_t i) { return static_cast<double>(pool[static_cast<size_t>(i)]); };
  return m.make(name,
                ResizeFrames{.images = m.plain(kU8, pictures, integers(0, 256)),
                             .frames = m.plain(kI32, {std::ssize(shapes)}, listed(frames)),
                             .pool = m.plain(kU8, {std::ssize(pool) / kFrameAlignment, kFrameAlignment}, pool_bytes),
                             .out = m.out(kU8, pictures)});
}

}  // namespace

std::vector<Case> frame_cases() {
  List list;
  const FrameShape hd{.height = 1080, .width = 1920, .top = 49, .bottom = 49};
  const FrameShape vga{.height = 480, .width = 640, .top = 28, .bottom = 28};
  Case three_hd = make_case("three_1080p", 224, {hd, hd, hd});
  three_hd.slow = true;
  list.add_bench(std::move(three_hd));
  list.add_bench(make_case("three_480p", 224, {vga, vga, vga}));
  list.add_bench(make_case("three_that_fit", 224, {{}, {}, {}}));
  list.add(make_case("planar", 224, {{.height = 90, .width = 160, .planar = true, .top = 49, .bottom = 49}}));
  list.add(make_case("mixed", 33,
                     {{.height = 40, .width = 50, .top = 3, .bottom = 4},
                      {},
                      {.height = 7, .width = 5, .planar = true, .left = 4, .right = 5},
                      {.height = 33, .width = 33}}));
  list.add(make_case("one_pixel", 20, {{.height = 1, .width = 1}, {.height = 1, .width = 1, .planar = true}}));
  list.add(make_case("tile_edge", 65, {{.height = 64, .width = 65, .left = 32, .bottom = 1}}));
  list.add(make_case("wide", 40,
                     {{.height = 3, .width = 2003, .top = 19, .bottom = 20},
                      {.height = 2, .width = 1999, .planar = true, .top = 39}}));
  list.add(make_case("tall", 40,
                     {{.height = 1501, .width = 9, .left = 19, .right = 20},
                      {.height = 801, .width = 11, .planar = true, .right = 39}}));
  list.add(make_case("widest", 8, {{.height = 1, .width = kMaxFrameSide, .top = 3, .bottom = 4}}));
  list.add(make_case("none", 16, {}));
  return list.take();
}

std::vector<Fault> frame_faults() {
  std::vector<Fault> faults;
  for (const double frame : {-1.0, 2.0}) {
    Maker m;
    faults.push_back({m.make("fault", ResizeFrames{.images = m.plain(kU8, {1, 8, 8, 3}, integers(0, 256)),
                                                   .frames = m.plain(kI32, {1}, listed({frame})),
                                                   .pool = m.plain(kU8, {2, kFrameAlignment}, integers(0, 256)),
                                                   .out = m.out(kU8, {1, 8, 8, 3})}),
                      fmt::format("{}", static_cast<int64_t>(frame))});
  }
  return faults;
}

}  // namespace tendon::op_check
