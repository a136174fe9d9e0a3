// Messages packed by Python (tests/data/wire/messages.json) are read as NumPy means them, and those that are written
// have the bytes that Python writes.
#include "wire/message.h"

#include <cmath>
#include <fstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace tendon::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  std::string hex;
  for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

std::span<const std::byte> span_of(const std::string& bytes) { return std::as_bytes(std::span(bytes)); }

// The message of the Error(kBadInput) that decoding must throw.
std::string refused(const std::string& bytes, const WireLimits& limits = {}) {
  try {
    decode_message(span_of(bytes), limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadInput) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "decoded";
  return {};
}

// Field case 13 and pitfall 8.
TEST(Wire, ReadsWhatPythonPacks) {
  std::ifstream file(std::string(TENDON_TEST_DATA) + "/wire/messages.json");
  const json cases = json::parse(file);
  ASSERT_GT(cases.size(), 150U);
  for (const json& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const std::string bytes = from_hex(c["hex"]);
    if (c.contains("error")) {
      const std::string message = refused(bytes);
      for (const std::string part : c["error"]) EXPECT_THAT(message, HasSubstr(part));
      continue;
    }
    const WireValue message = decode_message(span_of(bytes));
    const auto* map = message.get_if<WireMap>();
    ASSERT_NE(map, nullptr);
    const WireValue* const x = find_key(*map, "x");
    ASSERT_NE(x, nullptr);
    if (c.contains("text")) {
      EXPECT_EQ(to_text(*x, "x"), c["text"].get<std::string>());
      EXPECT_THROW(to_numbers(*x, "x"), Error);
      continue;
    }
    EXPECT_THROW(to_text(*x, "x"), Error);
    std::vector<double> numbers = to_numbers(*x, "x");
    if (c.contains("number")) {
      EXPECT_EQ(numbers, std::vector<double>{c["number"].get<double>()});
      EXPECT_EQ(std::signbit(numbers[0]), std::signbit(c["number"].get<double>()));
    } else if (c.contains("list")) {
      EXPECT_EQ(numbers, c["list"].get<std::vector<double>>());
      EXPECT_EQ(shape_of(*x, "x"), std::vector<int64_t>{std::ssize(numbers)});
    } else {
      const auto* array = x->get_if<WireArray>();
      ASSERT_NE(array, nullptr);
      EXPECT_EQ(array->dtype_text(), c["dtype"].get<std::string>());
      EXPECT_EQ(array->shape, c["shape"].get<std::vector<int64_t>>());
      EXPECT_EQ(numbers, c["values"].get<std::vector<double>>());
    }
  }
}

// Any prefix of a message is refused as cut short, and any byte may be damaged without more than an error.
TEST(Wire, CutAndDamagedMessagesAreRefused) {
  std::ifstream file(std::string(TENDON_TEST_DATA) + "/wire/messages.json");
  for (const json& c : json::parse(file)) {
    if (c.contains("error")) continue;
    const std::string bytes = from_hex(c["hex"]);
    for (size_t size = 1; size < bytes.size(); ++size)
      EXPECT_THAT(refused(bytes.substr(0, size)), HasSubstr("cut short")) << c["name"] << " " << size;
    for (size_t at = 0; at < bytes.size(); ++at) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      try {
        decode_message(span_of(damaged));
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
      }
    }
  }
}

TEST(Wire, LimitsHold) {
  WireWriter writer;
  writer.list(10);
  for (int i = 0; i < 10; ++i) writer.integer(i);
  const std::string list = writer.take();
  EXPECT_NO_THROW(decode_message(span_of(list), {.max_depth = 1, .max_values = 11}));
  EXPECT_THAT(refused(list, {.max_depth = 1, .max_values = 10}), HasSubstr("more than 10 values"));
  EXPECT_THAT(refused(list, {.max_depth = 0, .max_values = 11}), HasSubstr("deeper than 0"));
}

// The last of several equal keys counts, as in a Python dict.
TEST(Wire, LastOfEqualKeys) {
  const std::string bytes = WireWriter().map(2).text("x").integer(1).text("x").integer(2).take();
  EXPECT_EQ(to_numbers(*find_key(*decode_message(span_of(bytes)).get_if<WireMap>(), "x"), "x"),
            std::vector<double>{2.0});
}

// Bytes that openpi's own packages write: metadata of ALOHA, a request, a reply.
TEST(Wire, WritesOpenpisBytes) {
  EXPECT_EQ(to_hex(WireWriter().map(0).take()), "80");
  WireWriter metadata;
  metadata.map(1).text("reset_pose").list(6).integer(0).number(-1.5).number(1.5).integer(0).integer(0).integer(0);
  EXPECT_EQ(to_hex(metadata.take()),
            "81aa72657365745f706f736596"
            "00cbbff8000000000000cb3ff8000000000000000000");

  const std::array<double, 2> state{0.5, -1.0};
  const std::array<int64_t, 1> state_shape{2};
  const std::array<uint8_t, 6> pixels{0, 1, 2, 3, 4, 5};
  const std::array<int64_t, 3> image_shape{1, 2, 3};
  WireWriter request;
  request.map(3).text("state").array(state_shape, state).text("img");
  request.array("|u1", image_shape, std::as_bytes(std::span(pixels))).text("prompt").text("hi");
  EXPECT_EQ(to_hex(request.take()),
            "83a5737461746584c40b5f5f6e6461727261795f5fc3c40464617461c410000000000000e03f000000000000f0bf"
            "c4056474797065a33c6638c405736861706591"
            "02a3696d6784c40b5f5f6e6461727261795f5fc3c40464617461c406000102030405c4056474797065a37c7531"
            "c405736861706593010203a670726f6d7074a26869");

  const std::array<double, 2> actions{1.0, -2.0};
  const std::array<int64_t, 2> action_shape{1, 2};
  WireWriter reply;
  reply.map(3).text("actions").array(action_shape, actions);
  reply.text("policy_timing").map(1).text("infer_ms").number(12.5);
  reply.text("server_timing").map(2).text("infer_ms").number(13.25).text("prev_total_ms").number(14.0);
  const std::string bytes = reply.take();
  EXPECT_EQ(bytes.size(), 158U);
  EXPECT_THAT(to_hex(bytes), HasSubstr("cb4029000000000000"));  // whole numbers stay float64
  EXPECT_THAT(to_hex(bytes), HasSubstr("cb402c000000000000"));
}

TEST(Wire, IntegersTakeTheirShortestForm) {
  const std::vector<std::pair<int64_t, const char*>> cases = {{0, "00"},
                                                              {127, "7f"},
                                                              {128, "cc80"},
                                                              {224, "cce0"},
                                                              {256, "cd0100"},
                                                              {65536, "ce00010000"},
                                                              {-1, "ff"},
                                                              {-32, "e0"},
                                                              {-33, "d0df"},
                                                              {-129, "d1ff7f"},
                                                              {-32769, "d2ffff7fff"},
                                                              {int64_t{1} << 40, "cf0000010000000000"}};
  for (const auto& [value, hex] : cases) EXPECT_EQ(to_hex(WireWriter().integer(value).take()), hex);
}

// Of every beginning: what is whole is there, and as in the whole message.
TEST(Wire, ReadsWhatHasBegun) {
  const std::vector<uint8_t> pixels = {1, 2, 3, 4, 5, 6};
  const std::array<int64_t, 3> shape{1, 2, 3};
  WireWriter writer;
  writer.map(3).text("images").map(2);
  writer.text("a").array("|u1", shape, std::as_bytes(std::span(pixels)));
  const size_t end_of_a = std::string(WireWriter(writer).take()).size();
  writer.text("b").array("|u1", shape, std::as_bytes(std::span(pixels)));
  const size_t end_of_b = std::string(WireWriter(writer).take()).size();
  writer.text("list").list(2).number(1).number(2).text("prompt").text("fold");
  const std::string whole = writer.take();
  for (size_t size = 0; size <= whole.size(); ++size) {
    SCOPED_TRACE(size);
    const std::string begun = whole.substr(0, size);
    const WireValue value = decode_begun(span_of(begun));
    const auto* map = value.get_if<WireMap>();
    if (size == 0) continue;
    ASSERT_NE(map, nullptr);
    const WireValue* const images = find_key(*map, "images");
    const auto is_whole = [&](const char* key) {
      const auto* cameras = images == nullptr ? nullptr : images->get_if<WireMap>();
      const WireValue* const camera = cameras == nullptr ? nullptr : find_key(*cameras, key);
      const auto* array = camera == nullptr ? nullptr : camera->get_if<WireArray>();
      if (array == nullptr) return false;
      EXPECT_EQ(array->shape, (std::vector<int64_t>{1, 2, 3}));
      EXPECT_TRUE(std::ranges::equal(array->data, std::as_bytes(std::span(pixels))));
      return true;
    };
    EXPECT_EQ(is_whole("a"), size >= end_of_a);
    EXPECT_EQ(is_whole("b"), size >= end_of_b);
    EXPECT_EQ(find_key(*map, "prompt") != nullptr, size == whole.size());
  }
  EXPECT_THROW(decode_begun(span_of("\xc1")), Error);
  EXPECT_THROW(decode_begun(span_of(std::string("\x82\xa1x\xd4\x01\x00", 6))), Error) << "an extension";
  EXPECT_THROW(decode_begun(span_of("\x91\x91\x91"), {.max_depth = 2}), Error);
}

}  // namespace
}  // namespace tendon::test
