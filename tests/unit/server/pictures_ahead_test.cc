// Pictures that are made ready while their message comes are those that a request would get without.
#include "server/policy/pictures_ahead.h"

#include <thread>

#include <gmock/gmock.h>

#include "base/check.h"
#include "policy/preset/preset_file.h"
#include "policy/resize.h"
#include "server/policy/example_request.h"
#include "wire/message.h"

namespace tendon::test {
namespace {

using testing::HasSubstr;

constexpr int kSide = 20;

RequestDefaults defaults() {
  RequestDefaults defaults;
  defaults.prompt = "fold";
  defaults.horizon = 2;
  defaults.action_dim = 3;
  defaults.image_side = kSide;
  return defaults;
}

std::string message_of(const char* preset, int height, int width) {
  return example_request(find_preset(preset), {.height = height, .width = width, .number = 3});
}
std::span<const std::byte> span_of(const std::string& bytes) { return std::as_bytes(std::span(bytes)); }

std::vector<std::vector<uint8_t>> pictures_of(const RobotRequest& request) {
  std::vector<std::vector<uint8_t>> pictures;
  for (const auto& camera : request.observation.cameras)
    pictures.push_back(camera ? camera->rgb : std::vector<uint8_t>());
  return pictures;
}

std::vector<std::vector<uint8_t>> expected(const std::string& message, const Preset& preset) {
  return pictures_of(read_request(decode_message(span_of(message)), preset, defaults()));
}

TEST(PicturesAhead, AreThoseOfTheWholeMessage) {
  for (const char* name : {"pi0_aloha", "pi05_droid", "pi05_libero"}) {
    SCOPED_TRACE(name);
    const Preset& preset = find_preset(name);
    const std::string message = message_of(name, 37, 51);
    const auto wanted = expected(message, preset);
    EXPECT_FALSE(wanted[0].empty());
    for (const size_t looks : {0, 1, 5, 40}) {
      const RequestDefaults with = defaults();
      PicturesAhead ahead(preset, with);
      for (size_t look = 1; look <= looks; ++look) {
        // A copy, as when the buffer has grown since: pictures are known by their place.
        const std::string begun = message.substr(0, message.size() * look / looks);
        ahead.look(span_of(begun));
      }
      const WireValue decoded = decode_message(span_of(message));
      ahead.finish(span_of(message), decoded);
      EXPECT_EQ(pictures_of(read_request(decoded, preset, with, &ahead)), wanted) << looks << " looks";
      ahead.end();
    }
  }
}

TEST(PicturesAhead, ManyThreadsLook) {
  const Preset& preset = find_preset("pi0_aloha");
  const std::string message = message_of("pi0_aloha", 120, 90);
  const auto wanted = expected(message, preset);
  for (int round = 0; round < 20; ++round) {
    const RequestDefaults with = defaults();
    PicturesAhead ahead(preset, with);
    std::vector<std::thread> threads;
    for (size_t i = 1; i <= 3; ++i)
      threads.emplace_back([&, i] { ahead.look(span_of(message).first(message.size() * i / 3)); });
    const WireValue decoded = decode_message(span_of(message));
    ahead.finish(span_of(message), decoded);
    EXPECT_EQ(pictures_of(read_request(decoded, preset, with, &ahead)), wanted);
    ahead.end();
    ahead.look(span_of(message));  // nothing any more
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(PicturesAhead, ErrorsNameTheKeyAsEver) {
  const Preset& preset = find_preset("pi0_droid");
  const auto refused = [&](const std::string& message, bool looks) -> std::string {
    const RequestDefaults with = defaults();
    PicturesAhead ahead(preset, with);
    if (looks) ahead.look(span_of(message));
    try {
      const WireValue decoded = decode_message(span_of(message));
      ahead.finish(span_of(message), decoded);
      read_request(decoded, preset, with, &ahead);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadInput);
      return error.what();
    }
    return "accepted";
  };
  const std::string narrow = message_of("pi0_droid", 2000, 1);
  EXPECT_THAT(refused(narrow, true), HasSubstr("too narrow"));
  EXPECT_EQ(refused(narrow, true), refused(narrow, false));
  const std::string whole = message_of("pi0_droid", 30, 30);
  for (const std::string& damaged : {whole.substr(0, whole.size() / 2), std::string("\xc1"), whole + "x"})
    EXPECT_EQ(refused(damaged, true), refused(damaged, false));
}

TEST(PicturesAhead, OnlyTheCamerasOfThePreset) {
  const std::string message = message_of("pi0_aloha", 30, 40);
  const WireValue decoded = decode_message(span_of(message));
  EXPECT_EQ(pictures_in(decoded, find_preset("pi0_aloha")).size(), 3U);
  EXPECT_TRUE(pictures_in(decoded, find_preset("pi0_droid")).empty());
  EXPECT_TRUE(pictures_in(WireValue{}, find_preset("pi0_aloha")).empty());
}

// Pictures of the model's size stay where they are.
TEST(ReadRequest, LendsPicturesOfTheModelsSize) {
  for (const char* name : {"pi0_aloha", "pi05_droid"}) {
    const Preset& preset = find_preset(name);
    const std::string message = message_of(name, kSide, kSide);
    RequestDefaults copies = defaults();
    copies.image_side = 0;
    const RobotRequest copied = read_request(decode_message(span_of(message)), preset, copies);
    const RobotRequest request = read_request(decode_message(span_of(message)), preset, defaults());
    for (size_t i = 0; i < kCameraSlots; ++i) {
      EXPECT_FALSE(request.observation.cameras[i].has_value());
      ASSERT_EQ(request.observation.lent[i].has_value(), copied.observation.cameras[i].has_value());
      if (!request.observation.lent[i]) continue;
      const ImageView& lent = *request.observation.lent[i];
      EXPECT_GE(reinterpret_cast<const char*>(lent.bytes), message.data());
      EXPECT_LE(reinterpret_cast<const char*>(lent.bytes) + 3 * kSide * kSide, message.data() + message.size());
      EXPECT_EQ(interleaved(lent).rgb, copied.observation.cameras[i]->rgb);
    }
  }
}

}  // namespace
}  // namespace tendon::test
