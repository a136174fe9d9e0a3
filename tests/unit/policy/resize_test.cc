// Against Pillow, bit for bit; the fixtures are made by tools/make_policy_fixtures.py.
#include "policy/resize.h"

#include <chrono>

#include "policy_test.h"
#include "resize_pictures.h"

namespace tendon {
namespace {

TEST(Resize, EqualsPillowOnManySizes) {
  const auto cases = read_json("resize.json")["checksums"];
  EXPECT_GE(cases.size(), 80U);
  for (const auto& one : cases) {
    const Image image = picture(one["rule"], one["height"], one["width"]);
    const Image resized = resize_with_pad(image);
    EXPECT_EQ(resized.height, 224);
    EXPECT_EQ(resized.width, 224);
    EXPECT_EQ(fnv1a64(resized.rgb), one["fnv1a64"].get<std::string>()) << one;
  }
}

// Planes as they lie in a message give what the interleaved picture gives, at every edge of the blocks of rows.
TEST(Resize, PlanesAreReadInPlace) {
  for (const auto& [height, width] :
       {std::pair{480, 640}, {224, 224}, {17, 5}, {1, 1}, {33, 224}, {224, 33}, {31, 300}, {100, 16}}) {
    const Image image = picture("noise", height, width);
    const std::vector<uint8_t> planes = planes_of(image);
    const ImageView view{height, width, planes.data(), true};
    EXPECT_EQ(interleaved(view).rgb, image.rgb);
    EXPECT_EQ(resize_with_pad(view).rgb, resize_with_pad(image).rgb) << height << " x " << width;
    EXPECT_EQ(resize_with_pad(view, 20, 25).rgb, resize_with_pad(image, 20, 25).rgb) << height << " x " << width;
  }
}

TEST(Resize, EqualsPillowPixelByPixel) {
  const auto cases = read_json("resize.json")["small"];
  EXPECT_EQ(cases.size(), 4U);
  for (const auto& one : cases) {
    const Image resized =
        resize_with_pad(picture(one["rule"], one["height"], one["width"]), one["out_height"], one["out_width"]);
    EXPECT_EQ(resized.rgb, bytes_from_hex(one["rgb"])) << one["height"] << " x " << one["width"];
  }
}

// First and last row that is not black, of a white picture.
std::pair<int, int> lit_rows(int height, int width) {
  const Image white{height, width, std::vector<uint8_t>(static_cast<size_t>(height) * width * 3, 255)};
  const Image resized = resize_with_pad(white);
  std::pair<int, int> rows = {-1, -1};
  for (int y = 0; y < resized.height; ++y) {
    bool lit = false;
    for (int i = 0; i < resized.width * 3; ++i) lit |= resized.rgb[static_cast<size_t>(y * resized.width * 3 + i)] != 0;
    if (lit && rows.first < 0) rows.first = y;
    if (lit) rows.second = y;
  }
  return rows;
}

TEST(Resize, CentresThePicture) {
  EXPECT_EQ(lit_rows(480, 640), std::pair(28, 195));
  EXPECT_EQ(lit_rows(720, 1280), std::pair(49, 174));
  EXPECT_EQ(lit_rows(360, 640), std::pair(49, 174));
  EXPECT_EQ(lit_rows(640, 480), std::pair(0, 223));
}

TEST(Resize, TruncationLeavesASparePixelAtTheEnd) {
  const Image white{225, 225, std::vector<uint8_t>(225 * 225 * 3, 255)};
  const Image resized = resize_with_pad(white);
  EXPECT_EQ(resized.rgb[0], 255);
  EXPECT_EQ(resized.rgb[222 * 3], 255);
  EXPECT_EQ(resized.rgb[223 * 3], 0);
  EXPECT_EQ(resized.rgb[(222 * 224) * 3], 255);
  EXPECT_EQ(resized.rgb[(223 * 224) * 3], 0);
}

TEST(Resize, LeavesTheModelSizeUntouched) {
  const Image image = picture("noise", 224, 224);
  EXPECT_EQ(resize_with_pad(image).rgb, image.rgb);
}

TEST(Resize, RefusesWhatWouldVanish) {
  expect_bad_input({"1 x 1000", "too narrow"}, [] { resize_with_pad(picture("noise", 1000, 1)); });
  expect_bad_input({"without pixels"}, [] { resize_with_pad(Image{}); });
}

// A loose bound, so that a slow machine passes and a quadratic slip does not; prints the measured time.
TEST(Resize, FullHdFrameIsFast) {
  const Image frame = picture("noise", 1080, 1920);
  double best_ms = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    resize_with_pad(frame);
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    best_ms = std::min(best_ms, elapsed.count());
  }
  RecordProperty("best_ms", fmt::format("{:.2f}", best_ms));
  EXPECT_LT(best_ms, 500.0);
}

}  // namespace
}  // namespace tendon
