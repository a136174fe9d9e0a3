#include "policy/files/image.h"

#include <spng.h>
#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "policy/files/file.h"

namespace tendon {
namespace {

constexpr size_t kMaxImageBytes = size_t{256} << 20;
constexpr size_t kMaxPngChunkBytes = size_t{64} << 20;

struct FreeJpeg {
  void operator()(void* handle) const { tjDestroy(handle); }
};
struct FreePng {
  void operator()(spng_ctx* context) const { spng_ctx_free(context); }
};

[[noreturn]] void throw_damaged(std::string_view name, const char* format, const char* reason) {
  throw_bad_input("image '{}' is not a complete {} file ({}). It may be truncated or damaged: fetch or save it again.",
                  name, format, reason);
}

Image allocate(std::string_view name, uint64_t width, uint64_t height) {
  if (width > uint64_t{kMaxImageSide} || height > uint64_t{kMaxImageSide} ||
      width * height > static_cast<uint64_t>(kMaxImagePixels)) {
    throw_bad_input(
        "image '{}' is {} x {} pixels (width x height); the limit is {} per side and {} in all. Scale it down: the "
        "model sees 224 x 224.",
        name, width, height, kMaxImageSide, kMaxImagePixels);
  }
  Image image;
  image.width = static_cast<int>(width);
  image.height = static_cast<int>(height);
  image.rgb.resize(static_cast<size_t>(width * height) * 3);
  return image;
}

Image decode_jpeg(std::span<const std::byte> bytes, std::string_view name) {
  const std::unique_ptr<void, FreeJpeg> handle(tjInitDecompress());
  TENDON_CHECK(handle != nullptr, "tjInitDecompress: {}", tjGetErrorStr2(nullptr));
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  int width = 0;
  int height = 0;
  int subsampling = 0;
  int colorspace = 0;
  if (tjDecompressHeader3(handle.get(), data, bytes.size(), &width, &height, &subsampling, &colorspace) != 0) {
    throw_damaged(name, "JPEG", tjGetErrorStr2(handle.get()));
  }
  if (colorspace == TJCS_CMYK || colorspace == TJCS_YCCK) {
    throw_bad_input("image '{}' is a CMYK JPEG; only RGB and grayscale pictures are supported. Convert it to RGB.",
                    name);
  }
  Image image = allocate(name, static_cast<uint64_t>(width), static_cast<uint64_t>(height));
  // A warning (premature end, corrupt data) fails the call too: the pixels could not be trusted.
  if (tjDecompress2(handle.get(), data, bytes.size(), image.rgb.data(), width, 0, height, TJPF_RGB,
                    TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS) != 0) {
    throw_damaged(name, "JPEG", tjGetErrorStr2(handle.get()));
  }
  return image;
}

Image decode_png(std::span<const std::byte> bytes, std::string_view name) {
  const std::unique_ptr<spng_ctx, FreePng> context(spng_ctx_new(0));
  TENDON_CHECK(context != nullptr, "spng_ctx_new");
  spng_set_chunk_limits(context.get(), kMaxPngChunkBytes, kMaxPngChunkBytes);
  int code = spng_set_png_buffer(context.get(), bytes.data(), bytes.size());
  spng_ihdr header{};
  if (code == 0) code = spng_get_ihdr(context.get(), &header);
  if (code != 0) throw_damaged(name, "PNG", spng_strerror(code));
  Image image = allocate(name, header.width, header.height);
  code = spng_decode_image(context.get(), image.rgb.data(), image.rgb.size(), SPNG_FMT_RGB8, 0);
  if (code != 0) throw_damaged(name, "PNG", spng_strerror(code));
  return image;
}

template <size_t N>
bool starts_with(std::span<const std::byte> bytes, const std::array<uint8_t, N>& magic) {
  return bytes.size() >= N && std::memcmp(bytes.data(), magic.data(), N) == 0;
}

}  // namespace

Image decode_image(std::span<const std::byte> bytes, std::string_view name) {
  if (bytes.empty()) throw_bad_input("image '{}' is empty (0 bytes). Give a JPEG or PNG file.", name);
  if (starts_with<3>(bytes, {0xff, 0xd8, 0xff})) return decode_jpeg(bytes, name);
  if (starts_with<8>(bytes, {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'})) return decode_png(bytes, name);
  std::string found;
  for (const std::byte byte : bytes.first(std::min<size_t>(bytes.size(), 8))) {
    found += fmt::format("{}{:02x}", found.empty() ? "" : " ", static_cast<unsigned>(byte));
  }
  throw_bad_input(
      "image '{}' has an unknown format (it starts with bytes {}). Supported are JPEG and PNG: convert it to one of "
      "them.",
      name, found);
}

Image load_image(const std::string& path) {
  const std::string content = read_small_file(path, kMaxImageBytes, "image");
  return decode_image(std::as_bytes(std::span(content.data(), content.size())), path);
}

}  // namespace tendon
