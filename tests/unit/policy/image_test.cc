#include "policy/files/image.h"

#include <cstdlib>

#include "policy_test.h"

namespace tendon {
namespace {

std::string image_file(const std::string& name) { return fixture("images/" + name); }

Image decode(const std::string& content) {
  return decode_image(std::as_bytes(std::span(content.data(), content.size())), "test");
}

TEST(Image, DecodesWhatPillowDecodes) {
  const auto images = read_json("images.json")["images"];
  EXPECT_EQ(images.size(), 9U);
  for (const auto& [name, expected] : images.items()) {
    const Image image = load_image(image_file(name));
    EXPECT_EQ(image.height, expected["height"].get<int>()) << name;
    EXPECT_EQ(image.width, expected["width"].get<int>()) << name;
    const std::vector<uint8_t> wanted = bytes_from_hex(expected["rgb"]);
    ASSERT_EQ(image.rgb.size(), wanted.size()) << name;
    // PNG is exact; JPEG decoders may differ by rounding.
    const int tolerance = name.ends_with(".jpg") ? 2 : 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_LE(std::abs(int{image.rgb[i]} - int{wanted[i]}), tolerance) << name << " byte " << i;
    }
  }
}

TEST(Image, TellsTheFormatByContentNotByName) {
  const TempFile file("really_a_jpeg.png", read_text(image_file("rgb.jpg")));
  EXPECT_EQ(load_image(file.path()).rgb, load_image(image_file("rgb.jpg")).rgb);
}

TEST(Image, RefusesUnknownFormats) {
  expect_bad_input({"gif.png", "unknown format", "47 49 46 38", "JPEG and PNG"},
                   [] { load_image(image_file("gif.png")); });
  expect_bad_input({"unknown format", "68 69"}, [] { decode("hi"); });
  expect_bad_input({"empty"}, [] { decode(""); });
  expect_bad_input({"CMYK", "Convert it to RGB"}, [] { load_image(image_file("cmyk.jpg")); });
}

TEST(Image, RefusesBombsBeforeDecoding) {
  expect_bad_input({"20000 x 4", "16384 per side"}, [] { load_image(image_file("too_wide.png")); });
  expect_bad_input({"16000 x 16000", "64000000"}, [] { load_image(image_file("too_many_pixels.png")); });
  // A JPEG whose frame header claims 60000 x 60000.
  std::string jpeg = read_text(image_file("rgb_444.jpg"));
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xea\x60\xea\x60");
  expect_bad_input({"60000 x 60000"}, [&] { decode(jpeg); });
}

TEST(Image, RefusesMissingFiles) {
  expect_bad_input({"no/such/picture.png", "no such regular file"}, [] { load_image("no/such/picture.png"); });
  expect_bad_input({"no such regular file"}, [] { load_image("/tmp"); });
}

// Every prefix of every fixture is either refused or, for a cut in trailing metadata, decoded in full.
TEST(Image, TruncatedFilesNeverDecodePartly) {
  for (const char* name : {"rgb.png", "rgb16.png", "palette.png", "rgb.jpg", "progressive.jpg", "gray.jpg"}) {
    const std::string content = read_text(image_file(name));
    const std::vector<uint8_t> whole = decode(content).rgb;
    size_t refused = 0;
    for (size_t length = 0; length < content.size(); ++length) {
      try {
        EXPECT_EQ(decode(content.substr(0, length)).rgb, whole) << name << " cut to " << length;
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
        ++refused;
      }
    }
    EXPECT_GE(refused, content.size() * 9 / 10) << name;
  }
}

TEST(Image, DamagedFilesNeverCrash) {
  uint32_t seed = 1;
  for (const char* name : {"rgb.png", "palette.png", "alpha.png", "rgb.jpg", "progressive.jpg"}) {
    const std::string content = read_text(image_file(name));
    for (int round = 0; round < 400; ++round) {
      std::string damaged = content;
      for (int change = 0; change < 3; ++change) {
        seed = seed * 1664525U + 1013904223U;
        damaged[(seed >> 8) % damaged.size()] = static_cast<char>(seed >> 24);
      }
      try {
        const Image image = decode(damaged);
        EXPECT_EQ(image.rgb.size(), static_cast<size_t>(image.height) * image.width * 3);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kBadInput) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace tendon
